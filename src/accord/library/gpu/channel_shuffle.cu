// A block writes PER * THREADS units of an image, contiguously; all of a thread's loads are in flight before its first
// store. UNIT is the widest type that a plane is a multiple of.
extern "C" __global__ void __launch_bounds__(THREADS) channel_shuffle(const T *x, T *output) {
    const INDEX total = (INDEX)CHANNELS * PLANE;
    const unsigned image = blockIdx.x / BLOCKS;
    const UNIT *source = (const UNIT *)x + (unsigned long long)image * total;
    UNIT *target = (UNIT *)output + (unsigned long long)image * total;
    const INDEX first = (INDEX)(blockIdx.x % BLOCKS) * (PER * THREADS) + threadIdx.x;
    UNIT held[PER];
#pragma unroll
    for (int k = 0; k < PER; k++) {
        const INDEX at = first + k * THREADS;
        const INDEX channel = at / PLANE;
        const INDEX wanted = channel % GROUPS * (CHANNELS / GROUPS) + channel / GROUPS;
        if (at < total) held[k] = source[wanted * PLANE + at % PLANE];
    }
#pragma unroll
    for (int k = 0; k < PER; k++) {
        const INDEX at = first + k * THREADS;
        if (at < total) target[at] = held[k];
    }
}
