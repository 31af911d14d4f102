// CPU kernels of the engine: attention over shared spans, and the few element-wise parts between matrix products.
//
// Every output is one fixed chain of operations: scores sum over the head dimension, weights and values over positions,
// in order, with fused multiply-adds. A row's bits therefore depend neither on the batch it is in nor on how its
// prefix is cut into spans. Plain C interface; T is float or bfloat16 (as uint16_t), all arithmetic is in float.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#if defined __AVX__
#include <immintrin.h>
#elif defined __ARM_NEON
#include <arm_neon.h>
#endif

namespace {

constexpr int LINE = 16;      // floats of a cache line
constexpr int AHEAD = 16;     // rows of values fetched before they are needed
constexpr int KEY_TILE = 96;  // keys converted, or whose values are summed, at a time
// W: lanes of a vector, which is one register: compilers take wider ones apart badly. Sums that are kept in registers:
// KEYS x LANES vectors of scores, ROWS x WIDTH of values, of 32 registers (AVX-512, NEON) or 16.
#if defined __AVX512F__
constexpr int W = 16, KEYS = 12, LANES = 2, ROWS = 6, WIDTH = 4;
#elif defined __AVX__
constexpr int W = 8, KEYS = 6, LANES = 2, ROWS = 6, WIDTH = 2;
#else
constexpr int W = 4, KEYS = 6, LANES = 4, ROWS = 6, WIDTH = 4;
#endif

typedef float vf __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef uint16_t bf16;

inline vf load(const float* p) { return *reinterpret_cast<const vf*>(p); }
inline void store(float* p, vf x) { *reinterpret_cast<vf*>(p) = x; }
inline vf all(float x) { return x - vf{}; }  // x - 0 is x, so this is a broadcast only
inline vf larger(vf a, vf b) { return a > b ? a : b; }

// x * y + sum, rounded once: left to the compiler, it would be so in one register tile and not in another.
inline vf fused(vf x, vf y, vf sum) {
#if defined __AVX512F__
    return (vf)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)sum);
#elif defined __AVX__ && defined __FMA__
    return (vf)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)sum);
#elif defined __ARM_NEON
    return (vf)vfmaq_f32((float32x4_t)sum, (float32x4_t)x, (float32x4_t)y);
#else
    return x * y + sum;  // without such an instruction all tiles round twice
#endif
}

inline float wide(float x) { return x; }
inline float wide(bf16 x) {
    uint32_t bits = uint32_t(x) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}
inline void narrow(float x, float* out) { *out = x; }
inline void narrow(float x, bf16* out) {  // round to nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    *out = std::isnan(x) ? bf16(0x7fc0) : bf16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

typedef uint16_t vh __attribute__((vector_size(2 * W), aligned(2), may_alias));
inline vf load_wide(const float* p) { return load(p); }
inline vf load_wide(const bf16* p) {
    vi bits = __builtin_convertvector(*reinterpret_cast<const vh*>(p), vi) << 16;
    vf out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}
inline void store_narrow(vf x, float* out) { store(out, x); }
inline void store_narrow(vf x, bf16* out) {
    for (int i = 0; i < W; i++) narrow(x[i], out + i);
}

// e^x for x <= 0, relative error about 2e-7; 0 below -87. Cephes' reduction and polynomial.
inline vf exp_negative(vf x) {
    vf low = all(-87.0f);
    vi gone = x < low;
    x = larger(x, low);
    vf shifted = fused(x, all(1.44269504088896341f), all(12582912.0f));
    vf n = shifted - all(12582912.0f);
    vf r = fused(n, all(-0.693359375f), x);
    r = fused(n, all(2.12194440e-4f), r);
    vf p = all(1.9875691500e-4f);
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        p = fused(p, r, all(c));
    vf y = fused(p, r * r, r) + all(1.0f);
    vi power = (__builtin_convertvector(n, vi) + 127) << 23;
    vf scale;
    std::memcpy(&scale, &power, sizeof scale);
    return gone ? vf{} : y * scale;
}

// What the host language hands over. Pointers are to layer 0; strides are in elements.
struct Job {  // keys of one span, at positions [start, start + n), seen by tokens [first, last)
    int64_t k, v, layer_stride, head_stride, n, start, first, last, masked;
};
struct Place {  // where a token's key and value are kept
    int64_t k, v, layer_stride, head_stride;
};

struct Shape {
    int kv_heads, group, dim;
    float scale;
    int64_t window;  // a query sees its last `window` positions; 0: all
};

// DIM: the head dimension where it is known to the compiler (addresses become constants), else 0.
template <int KN, int MV, int DIM>
inline void score_tile(const float* k, const float* qt, int mpad, int dim, float* out) {
    const int64_t stride = DIM ? DIM : dim;
    vf sum[KN][MV] = {};
    for (int d = 0; d < stride; d++) {
        if (d % LINE == 0)  // the next keys: read column by column, they are no stream that a CPU would notice
            for (int j = 0; j < KN; j++) __builtin_prefetch(k + (KN + j) * stride + d);
        vf q[MV];
        for (int m = 0; m < MV; m++) q[m] = load(qt + d * mpad + m * W);
        for (int j = 0; j < KN; j++) {
            vf key = all(k[j * stride + d]);
            for (int m = 0; m < MV; m++) sum[j][m] = fused(key, q[m], sum[j][m]);
        }
    }
    for (int j = 0; j < KN; j++)
        for (int m = 0; m < MV; m++) store(out + int64_t(j) * mpad + m * W, sum[j][m]);
}

template <int MV, int DIM>
inline void score_keys(const float* k, int n, const float* qt, int mpad, int dim, float* out) {
    constexpr int KN = MV == 1 ? 12 : KEYS;
    int j = 0;
    for (; j + KN <= n; j += KN) score_tile<KN, MV, DIM>(k + j * dim, qt, mpad, dim, out + int64_t(j) * mpad);
    for (; j + 4 <= n; j += 4) score_tile<4, MV, DIM>(k + j * dim, qt, mpad, dim, out + int64_t(j) * mpad);
    for (; j < n; j++) score_tile<1, MV, DIM>(k + j * dim, qt, mpad, dim, out + int64_t(j) * mpad);
}

template <int MV>
inline void score_keys(const float* k, int n, const float* qt, int mpad, int dim, float* out) {
    if (dim == 64)
        score_keys<MV, 64>(k, n, qt, mpad, dim, out);
    else if (dim == 128)
        score_keys<MV, 128>(k, n, qt, mpad, dim, out);
    else
        score_keys<MV, 0>(k, n, qt, mpad, dim, out);
}

// Rows of `dim` values as floats: themselves, or converted into `room`.
inline const float* floats(const float* p, int64_t, int, float*) { return p; }
inline const float* floats(const bf16* p, int64_t n, int dim, float* room) {
    for (int64_t i = 0; i < n * dim; i += W) store(room + i, load_wide(p + i));
    return room;
}

template <int R, int DV>
inline void value_tile(const float* v, int n, int dim, const float* p, int mpad, float* out) {
    vf sum[R][DV];
    for (int r = 0; r < R; r++)
        for (int d = 0; d < DV; d++) sum[r][d] = load(out + r * dim + d * W);
    for (int j = 0; j < n; j++) {
        vf value[DV];
        for (int d = 0; d < DV; d++) {
            if (d * W % LINE == 0) __builtin_prefetch(v + int64_t(j + AHEAD) * dim + d * W);
            value[d] = load(v + int64_t(j) * dim + d * W);
        }
        for (int r = 0; r < R; r++) {
            vf weight = all(p[int64_t(j) * mpad + r]);
            for (int d = 0; d < DV; d++) sum[r][d] = fused(weight, value[d], sum[r][d]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int d = 0; d < DV; d++) store(out + r * dim + d * W, sum[r][d]);
}

template <int R, int DV>
inline void value_rows(const float* v, int n, int dim, const float* p, int mpad, float* out, int d = 0) {
    for (; d + DV * W <= dim; d += DV * W) value_tile<R, DV>(v + d, n, dim, p, mpad, out + d);
    if constexpr (DV > 1) value_rows<R, DV / 2>(v, n, dim, p, mpad, out, d);
}

inline void add_values(const float* v, int n, int dim, const float* p, int mpad, int rows, float* out) {
    int r = 0;
    for (; r + ROWS <= rows; r += ROWS) value_rows<ROWS, WIDTH>(v, n, dim, p + r, mpad, out + r * dim);
    for (; r + 3 <= rows; r += 3) value_rows<3, 4>(v, n, dim, p + r, mpad, out + r * dim);
    for (; r < rows; r++) value_rows<1, 8>(v, n, dim, p + r, mpad, out + r * dim);
}

// One job's part in a block of tokens.
struct Part {
    const Job* job;
    int64_t n;
    int lane, lanes, mpad;
    float* scores;
};

// Tokens [begin, end) of one KV head: scores of all their jobs, one softmax, then values in order of position.
template <typename T>
class Block {
   public:
    Block(const Shape& shape, const Job* jobs, int64_t num_jobs, const int64_t* positions, int64_t layer)
        : s_(shape), jobs_(jobs), num_jobs_(num_jobs), positions_(positions), layer_(layer), room_(KEY_TILE * shape.dim) {}

    void run(const T* q, int64_t q_stride, T* out, int64_t out_stride, int64_t begin, int64_t end, int head) {
        begin_ = begin;
        int lanes = int(end - begin) * s_.group;
        most_.assign(lanes + W, -std::numeric_limits<float>::infinity());
        sum_.assign(lanes + W, 0.0f);
        out_.assign(size_t(lanes) * s_.dim, 0.0f);
        plan(end);
        for (const Part& part : parts_) score(part, q, q_stride, head);
        for (const Part& part : parts_) weigh(part);
        for (const Part& part : parts_) values(part, head);
        for (int lane = 0; lane < lanes; lane++) {
            T* to = out + (begin + lane / s_.group) * out_stride + (int64_t(head) * s_.group + lane % s_.group) * s_.dim;
            float scale = 1.0f / sum_[lane];
            for (int d = 0; d < s_.dim; d++) narrow(out_[size_t(lane) * s_.dim + d] * scale, to + d);
        }
    }

   private:
    void plan(int64_t end) {
        parts_.clear();
        size_t size = 0;
        for (int64_t i = 0; i < num_jobs_; i++) {
            const Job& job = jobs_[i];
            int64_t first = std::max(job.first, begin_), last = std::min(job.last, end);
            if (first >= last) continue;
            int64_t n = job.n;
            if (job.masked) n = std::min(n, positions_[last - 1] - job.start + 1);
            if (n <= 0) continue;
            int lanes = int(last - first) * s_.group, mpad = (lanes + W - 1) / W * W;
            parts_.push_back({&job, n, int(first - begin_) * s_.group, lanes, mpad, nullptr});
            size += size_t(n) * mpad;
        }
        if (scores_.size() < size) scores_.resize(size);
        float* at = scores_.data();
        for (Part& part : parts_) {
            part.scores = at;
            at += size_t(part.n) * part.mpad;
        }
    }

    const T* rows(int64_t base, const Job& job, int head) const {
        return reinterpret_cast<const T*>(base) + layer_ * job.layer_stride + head * job.head_stride;
    }

    void score(const Part& part, const T* q, int64_t q_stride, int head) {
        int dim = s_.dim, mpad = part.mpad;
        turned_.assign(size_t(dim) * mpad, 0.0f);
        for (int i = 0; i < part.lanes; i++) {
            int lane = part.lane + i;
            const T* from = q + (begin_ + lane / s_.group) * q_stride + (int64_t(head) * s_.group + lane % s_.group) * dim;
            for (int d = 0; d < dim; d++) turned_[size_t(d) * mpad + i] = wide(from[d]) * s_.scale;
        }
        const T* k = rows(part.job->k, *part.job, head);
        for (int64_t j = 0; j < part.n; j += KEY_TILE) {
            int n = int(std::min<int64_t>(KEY_TILE, part.n - j));
            const float* keys = floats(k + j * dim, n, dim, room_.data());
            int m = 0;
            for (; m + LANES * W <= mpad; m += LANES * W)
                score_keys<LANES>(keys, n, turned_.data() + m, mpad, dim, part.scores + j * mpad + m);
            for (; m < mpad; m += W)
                score_keys<1>(keys, n, turned_.data() + m, mpad, dim, part.scores + j * mpad + m);
        }
        if (part.job->masked || s_.window) mask(part);
        for (int m = 0; m < mpad; m += W) {
            vf most = all(-std::numeric_limits<float>::infinity());
            for (int64_t j = 0; j < part.n; j++) most = larger(load(part.scores + j * mpad + m), most);
            for (int i = m; i < std::min(m + W, part.lanes); i++)
                most_[part.lane + i] = std::max(most_[part.lane + i], most[i - m]);
        }
    }

    void mask(const Part& part) {
        int64_t seen_by_all = positions_[begin_ + part.lane / s_.group] - part.job->start + 1;
        for (int64_t j = s_.window ? 0 : std::max<int64_t>(seen_by_all, 0); j < part.n; j++) {
            int64_t key = part.job->start + j;
            for (int i = 0; i < part.lanes; i++) {
                int64_t query = positions_[begin_ + (part.lane + i) / s_.group];
                if (key > query || (s_.window && query - key >= s_.window))
                    part.scores[j * part.mpad + i] = -std::numeric_limits<float>::infinity();
            }
        }
    }

    void weigh(const Part& part) {
        for (int m = 0; m < part.mpad; m += W) {
            vf most = {}, sum = {};
            for (int i = m; i < std::min(m + W, part.lanes); i++) {
                most[i - m] = most_[part.lane + i];
                sum[i - m] = sum_[part.lane + i];
            }
            for (int64_t j = 0; j < part.n; j++) {
                float* at = part.scores + j * part.mpad + m;
                vf weight = exp_negative(load(at) - most);
                sum += weight;
                store(at, weight);
            }
            for (int i = m; i < std::min(m + W, part.lanes); i++) sum_[part.lane + i] = sum[i - m];
        }
    }

    void values(const Part& part, int head) {
        const T* v = rows(part.job->v, *part.job, head);
        for (int64_t j = 0; j < part.n; j += KEY_TILE) {
            int n = int(std::min<int64_t>(KEY_TILE, part.n - j));
            const float* some = floats(v + j * s_.dim, n, s_.dim, room_.data());
            add_values(some, n, s_.dim, part.scores + j * part.mpad, part.mpad, part.lanes,
                       out_.data() + size_t(part.lane) * s_.dim);
        }
    }

    const Shape& s_;
    const Job* jobs_;
    int64_t num_jobs_;
    const int64_t* positions_;
    int64_t layer_, begin_ = 0;
    std::vector<Part> parts_;
    std::vector<float> scores_, turned_, most_, sum_, out_, room_;
};

template <typename T>
void attend(const T* q, int64_t q_stride, const T* k, const T* v, int64_t kv_stride, T* out, int64_t out_stride,
            int64_t tokens, const Shape& shape, const Job* jobs, int64_t num_jobs, const Place* places,
            const int64_t* positions, int64_t layer, int first_head, int last_head) {
    for (int64_t t = 0; t < tokens; t++)
        for (int h = first_head; h < last_head; h++) {
            int64_t at = layer * places[t].layer_stride + h * places[t].head_stride;
            size_t size = shape.dim * sizeof(T);
            std::memcpy(reinterpret_cast<T*>(places[t].k) + at, k + t * kv_stride + int64_t(h) * shape.dim, size);
            std::memcpy(reinterpret_cast<T*>(places[t].v) + at, v + t * kv_stride + int64_t(h) * shape.dim, size);
        }
    Block<T> block(shape, jobs, num_jobs, positions, layer);
    int64_t step = std::max(1, 96 / shape.group);
    for (int h = first_head; h < last_head; h++)
        for (int64_t t = 0; t < tokens; t += step)
            block.run(q, q_stride, out, out_stride, t, std::min(t + step, tokens), h);
}

constexpr int NORM = 16;  // running sums of squares

// x += more (unless null); out = x / rms(x) * weight. Sums of squares are added in order.
template <typename T>
void add_norm(T* x, const T* more, const T* weight, T* out, int64_t rows, int dim, float eps) {
    for (int64_t r = 0; r < rows; r++) {
        T* row = x + r * dim;
        float lanes[NORM] = {};
        if (more)
            for (int d = 0; d < dim; d++) narrow(wide(row[d]) + wide(more[r * dim + d]), row + d);
        int d = 0;
        for (; d + NORM <= dim; d += NORM)
            for (int i = 0; i < NORM; i++) lanes[i] += wide(row[d + i]) * wide(row[d + i]);
        for (int i = 0; d < dim; d++, i++) lanes[i] += wide(row[d]) * wide(row[d]);
        float sum = 0;
        for (int i = 0; i < NORM; i++) sum += lanes[i];
        float scale = 1.0f / std::sqrt(sum / dim + eps);
        T* to = out + r * dim;
        for (int i = 0; i < dim; i++) narrow(wide(row[i]) * scale * wide(weight[i]), to + i);
    }
}

// Rotates the halves of each head's first `dim` values: [rows, heads, dim] at `stride` a row; cos, sin [rows, dim].
template <typename T>
void rotate(T* x, int64_t stride, const T* cos, const T* sin, int64_t rows, int heads, int dim) {
    int half = dim / 2;
    for (int64_t r = 0; r < rows; r++) {
        const T *c = cos + r * dim, *s = sin + r * dim;
        for (int h = 0; h < heads; h++) {
            T *a = x + r * stride + int64_t(h) * dim, *b = a + half;
            for (int d = 0; d < half; d++) {
                float first = wide(a[d]), second = wide(b[d]);
                narrow(first * wide(c[d]) - second * wide(s[d]), a + d);
                narrow(second * wide(c[d + half]) + first * wide(s[d + half]), b + d);
            }
        }
    }
}

inline vf silu_times(vf gate, vf up) {
    vf e = exp_negative(gate > vf{} ? -gate : gate);  // e^-|gate|
    vf sigmoid = (gate > vf{} ? all(1.0f) : e) / (all(1.0f) + e);
    return gate * sigmoid * up;
}

// out = silu(gate) * up for [rows, 2 * dim] = gate, up.
template <typename T>
void silu_mul(const T* gate_up, T* out, int64_t rows, int dim) {
    for (int64_t r = 0; r < rows; r++) {
        const T *gate = gate_up + r * 2 * dim, *up = gate + dim;
        T* to = out + r * dim;
        int d = 0;
        for (; d + W <= dim; d += W) store_narrow(silu_times(load_wide(gate + d), load_wide(up + d)), to + d);
        for (; d < dim; d++) narrow(silu_times(all(wide(gate[d])), all(wide(up[d])))[0], to + d);
    }
}

}  // namespace

#define EXPORT(NAME, T)                                                                                              \
    extern "C" void rksc_attend_##NAME(const T* q, int64_t q_stride, const T* k, const T* v, int64_t kv_stride,      \
                                       T* out, int64_t out_stride, int64_t tokens, int kv_heads, int group, int dim, \
                                       float scale, int64_t window, const void* jobs, int64_t num_jobs,              \
                                       const void* places, const int64_t* positions, int64_t layer, int first_head,  \
                                       int last_head) {                                                              \
        Shape shape{kv_heads, group, dim, scale, window};                                                            \
        attend<T>(q, q_stride, k, v, kv_stride, out, out_stride, tokens, shape, static_cast<const Job*>(jobs),       \
                  num_jobs, static_cast<const Place*>(places), positions, layer, first_head, last_head);             \
    }                                                                                                                \
    extern "C" void rksc_add_norm_##NAME(T* x, const T* more, const T* weight, T* out, int64_t rows, int dim,        \
                                         float eps) {                                                                \
        add_norm<T>(x, more, weight, out, rows, dim, eps);                                                           \
    }                                                                                                                \
    extern "C" void rksc_rotate_##NAME(T* x, int64_t stride, const T* cos, const T* sin, int64_t rows, int heads,    \
                                       int dim) {                                                                    \
        rotate<T>(x, stride, cos, sin, rows, heads, dim);                                                            \
    }                                                                                                                \
    extern "C" void rksc_silu_mul_##NAME(const T* gate_up, T* out, int64_t rows, int dim) {                          \
        silu_mul<T>(gate_up, out, rows, dim);                                                                        \
    }

EXPORT(float32, float)
EXPORT(bfloat16, bf16)
