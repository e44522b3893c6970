// Kernels of workbench::Scale: y[n, d] = x[n, d] * w[d] * alpha. One is right; each of the others breaks one promise.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARGS const float *x, const float *w, float *y, int64_t N, int64_t D, double alpha, float *t, int64_t bytes, void *stream
#define CHECKED if (D < 1) return 1; if (bytes < 4 * D) return 2; for (int64_t d = 0; d < D; d++) t[d] = (w ? w[d] : 1) * (float)alpha;
#define ROWS for (int64_t n = 0; n < N; n++) for (int64_t d = 0; d < D; d++)
#define RIGHT y[n * D + d] = x[n * D + d] * t[d]

int32_t right(ARGS) { CHECKED ROWS RIGHT; return 0; }
int32_t reads_past(ARGS) { CHECKED volatile float s = 0; ROWS { s += x[n * D + d + 1]; RIGHT; } return 0; }
int32_t writes_past(ARGS) { CHECKED ROWS RIGHT; if (N) y[N * D] = 0; return 0; }
int32_t reads_before(ARGS) { CHECKED volatile float s = x[-1]; ROWS RIGHT; return 0; }
int32_t leaves_tail(ARGS) { CHECKED for (int64_t i = 0; i < N * D / 8 * 8; i++) y[i] = x[i] * t[i % D]; return 0; }
int32_t more_workspace(ARGS) { CHECKED for (int64_t d = D; d < D + 4; d++) t[d] = 0; ROWS RIGHT; return 0; }
int32_t old_workspace(ARGS) {
    if (D < 1) return 1;
    for (int64_t d = 0; d < D; d++) if (isnan(t[d])) t[d] = (w ? w[d] : 1) * (float)alpha;
    ROWS RIGHT; return 0;
}
int32_t static_memory(ARGS) {
    static float s[1 << 20];
    CHECKED memcpy(s, t, 4 * D); ROWS y[n * D + d] = x[n * D + d] * s[d]; return 0;
}
int32_t needs_weight(ARGS) { if (D < 1) return 1; ROWS y[n * D + d] = x[n * D + d] * w[d] * (float)alpha; return 0; }
int32_t few_times(ARGS) { static int calls; CHECKED ROWS { RIGHT; if (calls > 300) y[n * D + d] = 0; } calls++; return 0; }
int32_t replays(ARGS) {
    static const float *last; static int64_t size; static float *kept;
    CHECKED
    if (x == last && size == N * D) { memcpy(y, kept, 4 * size); return 0; }
    ROWS RIGHT;
    last = x; size = N * D; kept = realloc(kept, 4 * size + 4); memcpy(kept, y, 4 * size); return 0;
}
int32_t changes_input(ARGS) { CHECKED ROWS { RIGHT; ((float *)x)[n * D + d] *= 2; } return 0; }
int32_t prints(ARGS) { CHECKED ROWS RIGHT; puts("done"); return 0; }
int32_t hangs(ARGS) { CHECKED ROWS RIGHT; while (N == 3) ; return 0; }
int32_t exits(ARGS) { CHECKED ROWS RIGHT; if (N == 7) exit(3); return 0; }
int32_t leaks(ARGS) {
    CHECKED ROWS RIGHT;
    volatile char *p = malloc(65536);
    for (int i = 0; p && i < 65536; i += 512) p[i] = 1;
    return 0;
}
int32_t counts_in_32_bits(ARGS) {
    CHECKED int32_t n = (int32_t)(N * D);
    for (int32_t i = 0; i < n; i += (int32_t)D) for (int32_t d = 0; d < (int32_t)D; d++) y[i + d] = x[i + d] * t[d];
    return 0;
}
int32_t loses_nan(ARGS) { CHECKED ROWS y[n * D + d] = fmaxf(x[n * D + d] * t[d], -3e38f); return 0; }
int32_t wants_alignment(ARGS) {
    CHECKED ROWS RIGHT;
#ifdef __x86_64__
    __asm__ volatile("movaps (%0), %%xmm0" ::"r"((uintptr_t)x % 16 ? x : (float *)&(struct { _Alignas(16) float v[4]; }){0}) : "xmm0");
#endif
    return 0;
}
int32_t random_bits(ARGS) {
    static unsigned r; CHECKED ROWS RIGHT;
    r = r * 1103515245u + 12345u;
    if (N) y[0] *= 1 + (r >> 16 & 1) * 1e-6f;
    return 0;
}
int32_t ignores_alpha(ARGS) { if (D < 1) return 1; ROWS y[n * D + d] = x[n * D + d] * (w ? w[d] : 1) * 0.5f; return 0; }
int32_t one_shape(ARGS) { CHECKED ROWS { RIGHT; if (D == 33) y[n * D + d] = 0; } return 0; }

// Kernels of workbench::Twice, which takes any strides.
#define STRIDED const float *x, float *y, int64_t N, int64_t D, int64_t xn, int64_t xd, int64_t yn, int64_t yd, void *stream
#define DISTINCT if ((N > 1 && yn == 0) || (D > 1 && yd == 0)) return 1;

int32_t right_strides(STRIDED) { DISTINCT ROWS y[n * yn + d * yd] = 2 * x[n * xn + d * xd]; return 0; }
int32_t last_stride(STRIDED) { DISTINCT ROWS y[n * yn + d * yd] = 2 * x[n * xn + d]; return 0; }
int32_t output_strides(STRIDED) { DISTINCT ROWS y[n * D + d] = 2 * x[n * xn + d * xd]; return 0; }
int32_t negative_strides(STRIDED) {
    DISTINCT if (xn < 0) xn = -xn;
    ROWS y[n * yn + d * yd] = 2 * x[n * xn + d * xd]; return 0;
}
int32_t overlapping(STRIDED) { ROWS y[n * yn + d * yd] = 2 * x[n * xn + d * xd]; return 0; }
int32_t short_strides(STRIDED) {
    DISTINCT ROWS y[(int32_t)n * (int32_t)yn + d * yd] = 2 * x[(int32_t)n * (int32_t)xn + d * xd]; return 0;
}
