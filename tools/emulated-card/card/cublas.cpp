// The functions of libcublas.so.13 that candle calls. Sums are added in the order of k for all shapes.
#include "../cuda_bf16.h"
#include "../cuda_fp16.h"
#include "card.h"
#include <algorithm>

#define CUBLAS extern "C" __attribute__((visibility("default")))

namespace {

// Values of cublasStatus_t.
enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, INTERNAL_ERROR = 14, NOT_SUPPORTED = 15 };

// Bytes that a library takes when it is created, and for each capture.
constexpr size_t OWN = 1 << 20, WORKSPACE = 8 << 20;

// Values of cudaDataType.
enum Type { F32 = 0, F64 = 1, F16 = 2, BF16 = 14 };
// The compute type that reads f32 operands as tensor cores do.
constexpr int FAST_TF32 = 77;

// A cuBLAS handle. Unless it was given a workspace, it allocates one for each capture and keeps it until it is
// destroyed.
struct Library {
  void *stream = nullptr;
  int card = card::current_card();
  std::vector<uintptr_t> own = {card::lend(OWN)};
  bool given = false;
  uint64_t captured = 0;
};

// A column-major matrix: element (i, j) of the matrix, or of its transpose, lies at i + j * ld.
struct Matrix {
  char *first;
  bool transposed;
  long long ld, stride;
};

struct Product {
  int m, n, k;
  double alpha, beta;
  Matrix a, b, c;
  int count;
};

// A matrix in parts of WIDE rows, or columns if `across`: [part, k, WIDE], padded with zeros.
template <typename T, typename S, int WIDE>
std::vector<S> parts_of(const Matrix &matrix, int of, bool across, int count, int k) {
  const T *first = reinterpret_cast<const T *>(matrix.first) + of * matrix.stride;
  const bool beside = matrix.transposed != across;
  const long long step = beside ? matrix.ld : 1, deep = beside ? 1 : matrix.ld;
  std::vector<S> parts(size_t(count + WIDE - 1) / WIDE * k * WIDE);
  for (int i = 0; i < count; i++)
    for (int l = 0; l < k; l++) parts[(size_t(i / WIDE) * k + l) * WIDE + i % WIDE] = S(first[i * step + l * deep]);
  return parts;
}

constexpr int COLUMNS = 4;
template <typename S> constexpr int ROWS = 64 / sizeof(S);

// sums: [COLUMNS, ROWS], the product of one part of rows and one part of columns.
template <typename S>
__attribute__((target_clones("avx512f", "avx2", "default"))) void multiply(const S *a, const S *b, int k, S *sums) {
  typedef S Rows __attribute__((vector_size(64), aligned(sizeof(S)), may_alias));
  Rows columns[COLUMNS] = {};
  for (int l = 0; l < k; l++) {
    const Rows rows = *reinterpret_cast<const Rows *>(a + size_t(l) * ROWS<S>);
    for (int j = 0; j < COLUMNS; j++) columns[j] += rows * b[size_t(l) * COLUMNS + j];
  }
  memcpy(sums, columns, sizeof columns);
}

// A product with operands of type T, a result of type C and sums of type S.
template <typename T, typename C, typename S> void multiply(const Product &p, int of) {
  const auto a = parts_of<T, S, ROWS<S>>(p.a, of, false, p.m, p.k);
  const auto b = parts_of<T, S, COLUMNS>(p.b, of, true, p.n, p.k);
  C *c = reinterpret_cast<C *>(p.c.first) + of * p.c.stride;
  for (int top = 0; top < p.m; top += ROWS<S>)
    for (int left = 0; left < p.n; left += COLUMNS) {
      S sums[COLUMNS * ROWS<S>];
      multiply(a.data() + size_t(top) * p.k, b.data() + size_t(left) * p.k, p.k, sums);
      for (int j = left; j < std::min(left + COLUMNS, p.n); j++)
        for (int i = top; i < std::min(top + ROWS<S>, p.m); i++) {
          C &to = c[i + j * p.c.ld];
          // With beta 0 the previous result is not read.
          const S before = p.beta == 0 ? S(0) : S(p.beta) * S(to);
          to = C(S(p.alpha) * sums[(j - left) * ROWS<S> + i - top] + before);
        }
    }
}

template <typename T, typename C, typename S> void multiply(const Product &p) {
  for (int of = 0; of < p.count; of++) multiply<T, C, S>(p, of);
}

// An f32 operand as tensor cores read it: 11 bits of significand, ties to even.
struct Tf32 {
  float whole;
  explicit operator float() const {
    if (std::isnan(whole)) return whole;
    uint32_t bits;
    memcpy(&bits, &whole, sizeof bits);
    bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    float rounded;
    memcpy(&rounded, &bits, sizeof bits);
    return rounded;
  }
};

using Run = void (*)(const Product &);

// The product for the types of operands and result: equal types, or 16-bit operands with an f32 result. Null for other
// types.
Run product(int of, int result, int compute) {
  if (of == F32 && result == F32 && compute == FAST_TF32) return multiply<Tf32, float, float>;
  if (of == F32 && result == F32) return multiply<float, float, float>;
  if (of == F64 && result == F64) return multiply<double, double, double>;
  if (of == F16 && result == F16) return multiply<__half, __half, float>;
  if (of == F16 && result == F32) return multiply<__half, float, float>;
  if (of == BF16 && result == BF16) return multiply<__nv_bfloat16, __nv_bfloat16, float>;
  if (of == BF16 && result == F32) return multiply<__nv_bfloat16, float, float>;
  return nullptr;
}

int add(Library &library, Run run, const Product &p) {
  if (library.card != card::current_card()) return EXECUTION_FAILED;
  if (p.m < 0 || p.n < 0 || p.k < 0 || p.count < 0) return INVALID_VALUE;
  if (p.a.ld < std::max(1, p.a.transposed ? p.k : p.m) || p.b.ld < std::max(1, p.b.transposed ? p.n : p.k) ||
      p.c.ld < std::max(1, p.m))
    return INVALID_VALUE;
  if (p.m == 0 || p.n == 0 || p.count == 0) return SUCCESS;
  const uint64_t captured = card::capture_of(library.stream);
  if (captured != library.captured && captured != 0 && !library.given) library.own.push_back(card::lend(WORKSPACE));
  library.captured = captured;
  card::add(library.stream, "a product of cuBLAS", [run, p] { run(p); });
  return SUCCESS;
}

// Reads alpha or beta, whose type follows from the compute type.
bool scale(int compute, const void *number, double &value) {
  if (compute == 64 || compute == 65) value = float(*static_cast<const __half *>(number));
  else if (compute == 68 || compute == 69 || compute == 74 || compute == 75 || compute == 77)
    value = *static_cast<const float *>(number);
  else if (compute == 70 || compute == 71) value = *static_cast<const double *>(number);
  else return false;
  return true;
}

Matrix matrix(const void *first, int operation, int ld, long long stride) {
  return {static_cast<char *>(const_cast<void *>(first)), operation != 0, ld, stride};
}

} // namespace

CUBLAS int cublasCreate_v2(void **handle) {
  if (card::current_card() < 0) return NOT_INITIALIZED;
  if (card::wait_for_card() != 0) return INTERNAL_ERROR;
  return *handle = new Library, SUCCESS;
}
CUBLAS int cublasDestroy_v2(void *handle) {
  if (card::wait_for_card() != 0) return INTERNAL_ERROR;
  Library *library = static_cast<Library *>(handle);
  for (uintptr_t address : library->own) card::take_back(address);
  return delete library, SUCCESS;
}
// A workspace applies only to the stream that was set before it.
CUBLAS int cublasSetStream_v2(void *handle, void *stream) {
  Library *library = static_cast<Library *>(handle);
  return library->stream = stream, library->given = false, SUCCESS;
}
CUBLAS int cublasSetMathMode(void *, int) { return SUCCESS; }
CUBLAS int cublasSetWorkspace_v2(void *handle, void *memory, size_t) {
  Library *library = static_cast<Library *>(handle);
  if (reinterpret_cast<uintptr_t>(memory) % 256 != 0) return INVALID_VALUE;
  return library->given = card::reaches(library->card, memory), SUCCESS;
}
CUBLAS int cublasGetVersion_v2(void *, int *version) { return *version = 130000, SUCCESS; }
CUBLAS int cublasGetProperty(int which, int *value) { return *value = which == 0 ? 13 : 0, SUCCESS; }

CUBLAS int cublasGemmStridedBatchedEx(void *handle, int transa, int transb, int m, int n, int k, const void *alpha,
                                      const void *a, int a_type, int lda, long long stride_a, const void *b,
                                      int b_type, int ldb, long long stride_b, const void *beta, void *c, int c_type,
                                      int ldc, long long stride_c, int count, int compute, int) {
  Product p = {m,  n, k, 0, 0, matrix(a, transa, lda, stride_a), matrix(b, transb, ldb, stride_b),
               matrix(c, 0, ldc, stride_c), count};
  const Run run = product(a_type, c_type, compute);
  if (!run || b_type != a_type || !scale(compute, alpha, p.alpha) || !scale(compute, beta, p.beta))
    return NOT_SUPPORTED;
  return add(*static_cast<Library *>(handle), run, p);
}

CUBLAS int cublasGemmEx(void *handle, int transa, int transb, int m, int n, int k, const void *alpha, const void *a,
                        int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type,
                        int ldc, int compute, int algorithm) {
  return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, a, a_type, lda, 0, b, b_type, ldb, 0, beta,
                                    c, c_type, ldc, 0, 1, compute, algorithm);
}

#define GEMM(name, T, type, compute)                                                                                  \
  CUBLAS int cublas##name##gemm_v2(void *handle, int transa, int transb, int m, int n, int k, const T *alpha,         \
                                   const T *a, int lda, const T *b, int ldb, const T *beta, T *c, int ldc) {          \
    return cublasGemmEx(handle, transa, transb, m, n, k, alpha, a, type, lda, b, type, ldb, beta, c, type, ldc,       \
                        compute, 0);                                                                                  \
  }                                                                                                                   \
  CUBLAS int cublas##name##gemmStridedBatched(void *handle, int transa, int transb, int m, int n, int k,              \
                                              const T *alpha, const T *a, int lda, long long stride_a, const T *b,    \
                                              int ldb, long long stride_b, const T *beta, T *c, int ldc,              \
                                              long long stride_c, int count) {                                        \
    return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, a, type, lda, stride_a, b, type, ldb,   \
                                      stride_b, beta, c, type, ldc, stride_c, count, compute, 0);                     \
  }

GEMM(S, float, F32, 68)
GEMM(D, double, F64, 70)
