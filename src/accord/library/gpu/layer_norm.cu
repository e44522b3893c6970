// A block normalises one row of D_ elements: UNIT at a time, PER units a thread, held in registers as float32, so that
// the variance is that of the centred row. Sums go from lanes to warps through shared memory.
struct alignas(sizeof(T) * UNIT) Unit { T item[UNIT]; };

__device__ float total_of(float v, float *shared) {
#pragma unroll
    for (int lanes = 16; lanes; lanes /= 2) v += __shfl_xor_sync(0xffffffffu, v, lanes);
    __syncthreads();  // whoever still reads the sum before
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; warp++) v += shared[warp];
    return v;
}

extern "C" __global__ void __launch_bounds__(THREADS)
layer_norm(const T *x, const T *weight, const T *bias, T *output, float eps) {
    __shared__ float shared[THREADS / 32];
    const Unit *source = (const Unit *)(x + (unsigned long long)blockIdx.x * D_);
    Unit *target = (Unit *)(output + (unsigned long long)blockIdx.x * D_);
    float z[PER][UNIT];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < PER; k++) {
        const int at = k * THREADS + threadIdx.x;
        const bool inside = at < D_ / UNIT;
        Unit u;
        if (inside) u = source[at];
#pragma unroll
        for (int i = 0; i < UNIT; i++) {
            z[k][i] = inside ? (float)u.item[i] : 0.0f;
            sum += z[k][i];
        }
    }
    const float mean = total_of(sum, shared) / D_;
    float squares = 0;
#pragma unroll
    for (int k = 0; k < PER; k++) {
        const bool inside = k * THREADS + threadIdx.x < D_ / UNIT;
#pragma unroll
        for (int i = 0; i < UNIT; i++) {
            z[k][i] -= mean;
            if (inside) squares += z[k][i] * z[k][i];
        }
    }
    const float scale = 1.0f / sqrtf(total_of(squares, shared) / D_ + eps);
#pragma unroll
    for (int k = 0; k < PER; k++) {
        const int at = k * THREADS + threadIdx.x;
        if (at >= D_ / UNIT) break;
        Unit w, b, u;
        if (weight) w = ((const Unit *)weight)[at];
        if (bias) b = ((const Unit *)bias)[at];
#pragma unroll
        for (int i = 0; i < UNIT; i++) {
            float v = z[k][i] * scale;
            if (weight) v *= (float)w.item[i];
            if (bias) v += (float)b.item[i];
            u.item[i] = (T)v;
        }
        target[at] = u;
    }
}
