// softmax(rotate(q) rotate(k)^T / sqrt(head_dim)) v of each head over a sliding window (Vaswani et al. 2017, eq. 1;
// RoPE: Su et al. 2021, eq. 34), block by block (Dao et al. 2022): the scores of a whole sequence never exist at once.
//
// qkv [b, t, 3 * heads * head_dim], rings of the cache [b, window, heads * head_dim], y, and all gradients of these are
// of type T. `seen` [b], tables of rotations [positions, head_dim / 2], log_sums and `along` [b, heads, t], and all
// arithmetic are f32. The query of frame t sees the frames s with 0 <= t - s < window that exist: the first `lengths`
// frames of its row (all if `lengths` is null), and `seen` cached frames, which are s = -1, -2, .. Frame s lies in slot
// (seen + s) % window of the ring.
//
// head_dim is even and at most D = 32, 64 or 128. Scores depend only on the distance of two frames: a block counts
// positions from its first frame, so every position is below `window` + 64, however long the game.
//
// A block computes a tile of frames of a head. Sums follow the order of the frames, so launches are reproducible bit by
// bit.

#include "numbers.cuh"

// Unrolls a loop n times, where the compiler alone would unroll it completely.
#ifdef __CUDACC__
#define TEXT(x) #x
#define UNROLL(n) _Pragma(TEXT(unroll n))
#else
#define UNROLL(n)
#endif

namespace {

// Threads of a block. Each half warp, of ACROSS threads, covers the columns of a tile.
constexpr int THREADS = 128;
constexpr int ACROSS = 16;
constexpr int DOWN = THREADS / ACROSS;
constexpr unsigned ALL_LANES = 0xffffffffu;

// Frames of a tile: four tiles of heads and two of weights fit into 48 KiB.
template <int D> constexpr int TILE = D <= 64 ? 32 : 16;
// Rows of a thread are DOWN apart, its columns of a tile of weights are ACROSS apart.
template <int D> constexpr int ROWS = TILE<D> / DOWN;
template <int D> constexpr int COLUMNS = TILE<D> / ACROSS;
// Elements of a thread in each row of a head: vectors of VECTOR elements, ACROSS vectors side by side.
template <int D> constexpr int NUMBERS = D / ACROSS;
template <int D> constexpr int VECTOR = NUMBERS<D> < 4 ? NUMBERS<D> : 4;

template <int N> struct alignas(4 * N) Vector {
  float v[N];
};

// Rows are padded by four elements, so that they start in different banks.
template <int D> struct alignas(16) Heads {
  float at[TILE<D>][D + 4];
};
template <int D> struct alignas(16) Weights {
  float at[TILE<D>][TILE<D> + 4];
};

template <int N> __device__ Vector<N> vector(const float *p) { return *reinterpret_cast<const Vector<N> *>(p); }

// Sums over the threads of a row; each thread gets the sum.
__device__ inline float sum_across(float v) {
  for (int apart = ACROSS / 2; apart > 0; apart /= 2) v += __shfl_xor_sync(ALL_LANES, v, apart);
  return v;
}

__device__ inline float most_across(float v) {
  for (int apart = ACROSS / 2; apart > 0; apart /= 2) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, apart));
  return v;
}

// Sizes of an attention.
struct Sizes {
  int time, heads, head_dim, window, interleaved;

  __device__ long long width() const { return heads * (long long)head_dim; }
  __device__ float scale() const { return 1.0f / sqrtf(float(head_dim)); }
};

// The data of one head in one row of the batch.
template <typename T> struct Row {
  // The queries; the keys start `width` behind them, and the values 2 * width.
  const T *qkv;
  const T *keys, *values;
  long long width;
  // Cached frames that a query can see.
  int past;
  // Frames of the row.
  int frames;
  int seen, window;

  __device__ Row(Sizes sizes, const T *qkv, const T *keys, const T *values, const float *seen, const int *lengths,
                 long long row, int head) {
    const long long skipped = head * (long long)sizes.head_dim;
    width = sizes.width();
    this->qkv = qkv + row * sizes.time * 3 * width + skipped;
    this->keys = keys + row * sizes.window * width + skipped;
    this->values = values + row * sizes.window * width + skipped;
    this->seen = int(seen[row]);
    window = sizes.window;
    past = min(this->seen, window - 1);
    frames = lengths ? lengths[row] : sizes.time;
  }

  __device__ const T *query(int t) const { return qkv + t * 3 * width; }
  __device__ const T *key(int s) const { return s >= 0 ? query(s) + width : keys + slot(s); }
  __device__ const T *value(int s) const { return s >= 0 ? query(s) + 2 * width : values + slot(s); }
  // The offset in the ring of a cached frame s, -window <= s < 0.
  __device__ long long slot(int s) const { return (seen + window + s) % window * width; }
  __device__ bool sees(int t, int s) const {
    return t < frames && s >= -past && s < frames && s <= t && t - s < window;
  }
};

// Tables of angles, and the pairs of elements that are rotated together.
struct Rotation {
  const float *cos, *sin;
  int half, interleaved;

  __device__ int first(int i) const { return interleaved ? 2 * i : i; }
  __device__ int second(int i) const { return interleaved ? 2 * i + 1 : half + i; }

  // Rotates pair i by the angle of a position.
  __device__ void turn(float &a, float &b, int i, int position) const {
    const float c = cos[position * (long long)half + i], s = sin[position * (long long)half + i];
    const float turned = a * c - b * s;
    b = b * c + a * s;
    a = turned;
  }

  __device__ void turn_back(float &a, float &b, int i, int position) const {
    const float c = cos[position * (long long)half + i], s = sin[position * (long long)half + i];
    const float turned = a * c + b * s;
    b = b * c - a * s;
    a = turned;
  }
};

// Loads `count` rows of a head; fills the other rows, and columns from head_dim on, with 0.
template <int D, typename Place> __device__ void load(Heads<D> &tile, int head_dim, int count, Place place) {
  const int column = threadIdx.x % D;
  UNROLL(2)
  for (int row = threadIdx.x / D; row < TILE<D>; row += THREADS / D)
    tile.at[row][column] = row < count && column < head_dim ? read(place(row) + column) : 0.0f;
}

// Loads rows rotated by positions from `first` on, and scaled. Pairs lie as (i, i + D / 2): scores do not depend on the
// order of the elements.
template <int D, typename Place>
__device__ void load_turned(Heads<D> &tile, Rotation rotation, int count, int first, float scale, Place place) {
  constexpr int PAIRS = D / 2;
  const int pair = threadIdx.x % PAIRS;
  UNROLL(2)
  for (int row = threadIdx.x / PAIRS; row < TILE<D>; row += THREADS / PAIRS) {
    float a = 0.0f, b = 0.0f;
    if (row < count && pair < rotation.half) {
      a = read(place(row) + rotation.first(pair));
      b = read(place(row) + rotation.second(pair));
      rotation.turn(a, b, pair, first + row);
    }
    tile.at[row][pair] = a * scale;
    tile.at[row][PAIRS + pair] = b * scale;
  }
}

template <int D, typename Place>
__device__ void store(const Heads<D> &tile, int head_dim, int count, Place place) {
  const int column = threadIdx.x % D;
  if (column >= head_dim) return;
  UNROLL(1)
  for (int row = threadIdx.x / D; row < count; row += THREADS / D) write(place(row) + column, tile.at[row][column]);
}

// The backward pass of load_turned.
template <int D, typename Place>
__device__ void store_turned_back(const Heads<D> &tile, Rotation rotation, int count, int first, float scale,
                                  Place place) {
  constexpr int PAIRS = D / 2;
  const int pair = threadIdx.x % PAIRS;
  if (pair >= rotation.half) return;
  UNROLL(1)
  for (int row = threadIdx.x / PAIRS; row < count; row += THREADS / PAIRS) {
    float a = tile.at[row][pair] * scale, b = tile.at[row][PAIRS + pair] * scale;
    rotation.turn_back(a, b, pair, first + row);
    write(place(row) + rotation.first(pair), a);
    write(place(row) + rotation.second(pair), b);
  }
}

// This thread's part of a b^T [TILE, TILE].
template <int D> struct Products {
  float at[ROWS<D>][COLUMNS<D>] = {};

  __device__ Products(const Heads<D> &a, const Heads<D> &b) {
    const int x = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS;
UNROLL(2)
    for (int k = 0; k < D; k += 4) {
      Vector<4> own[ROWS<D>], other[COLUMNS<D>];
      for (int i = 0; i < ROWS<D>; i++) own[i] = vector<4>(a.at[y + DOWN * i] + k);
      for (int j = 0; j < COLUMNS<D>; j++) other[j] = vector<4>(b.at[x + ACROSS * j] + k);
      for (int i = 0; i < ROWS<D>; i++)
        for (int j = 0; j < COLUMNS<D>; j++)
          for (int e = 0; e < 4; e++) at[i][j] += own[i].v[e] * other[j].v[e];
    }
  }
};

// This thread's part of a tile of heads: in each row, vectors that are ACROSS vectors apart.
template <int D> struct Mixed {
  float at[ROWS<D>][NUMBERS<D>] = {};

  __device__ static int column(int n) {
    return n / VECTOR<D> * VECTOR<D> * ACROSS + threadIdx.x % ACROSS * VECTOR<D> + n % VECTOR<D>;
  }

  // += weights v
  __device__ void add(const Weights<D> &weights, const Heads<D> &v) {
    const int y = threadIdx.x / ACROSS;
UNROLL(1)
    for (int k = 0; k < TILE<D>; k += 4) {
      Vector<4> own[ROWS<D>];
      for (int i = 0; i < ROWS<D>; i++) own[i] = vector<4>(weights.at[y + DOWN * i] + k);
      for (int e = 0; e < 4; e++)
        for (int n = 0; n < NUMBERS<D>; n += VECTOR<D>) {
          const Vector<VECTOR<D>> other = vector<VECTOR<D>>(v.at[k + e] + column(n));
          for (int i = 0; i < ROWS<D>; i++)
            for (int c = 0; c < VECTOR<D>; c++) at[i][n + c] += own[i].v[e] * other.v[c];
        }
    }
  }

  __device__ void lay_out(Heads<D> &tile) const {
    const int y = threadIdx.x / ACROSS;
    for (int i = 0; i < ROWS<D>; i++)
      for (int n = 0; n < NUMBERS<D>; n++) tile.at[y + DOWN * i][column(n)] = at[i][n];
  }
};

// The work of a block: a tile of frames from `first` on, of one head in one row of the batch.
template <int D> struct Place {
  long long row;
  int head, first;

  // Blocks are numbered tile by tile, head by head, row by row; the tiles of a row start at `begin`.
  __device__ Place(Sizes sizes, int begin) {
    const int tiles = (sizes.time - begin + TILE<D> - 1) / TILE<D>;
    first = begin + int(blockIdx.x % tiles) * TILE<D>;
    head = int(blockIdx.x / tiles % sizes.heads);
    row = blockIdx.x / tiles / sizes.heads;
  }
};

// The grid has a block for each tile of queries.
template <int D, typename T>
__device__ void forward(Sizes sizes, const T *qkv, const T *keys, const T *values, const float *seen,
                        const int *lengths, const float *cos, const float *sin, T *y, float *log_sums) {
  __shared__ Heads<D> queries, others;
  __shared__ Weights<D> weights;
  const Place<D> place(sizes, 0);
  const Row<T> row(sizes, qkv, keys, values, seen, lengths, place.row, place.head);
  const Rotation rotation{cos, sin, sizes.head_dim / 2, sizes.interleaved};
  const int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS;
  const int begin = place.first, end = min(begin + TILE<D>, row.frames);
  const int oldest = max(begin - sizes.window + 1, -row.past);

  load_turned(queries, rotation, end - begin, begin - oldest, sizes.scale(),
              [&](int i) { return row.query(begin + i); });
  Mixed<D> mixed;
  float most[ROWS<D>], sums[ROWS<D>];
  for (int i = 0; i < ROWS<D>; i++) {
    most[i] = -INFINITY;
    sums[i] = 0.0f;
  }
  for (int s = oldest; s < end; s += TILE<D>) {
    const int count = min(TILE<D>, end - s);
    load_turned(others, rotation, count, s - oldest, 1.0f, [&](int j) { return row.key(s + j); });
    __syncthreads();
    const Products<D> scores(queries, others);
    for (int i = 0; i < ROWS<D>; i++) {
      const int t = begin + down + DOWN * i;
      float masked[COLUMNS<D>], largest = most[i];
      for (int j = 0; j < COLUMNS<D>; j++) {
        masked[j] = row.sees(t, s + across + ACROSS * j) ? scores.at[i][j] : -INFINITY;
        largest = fmaxf(largest, masked[j]);
      }
      largest = most_across(largest);
      // A query that has seen no key so far has base 0.
      const float base = largest == -INFINITY ? 0.0f : largest;
      const float keep = expf(most[i] - base);
      most[i] = largest;
      sums[i] *= keep;
      for (int n = 0; n < NUMBERS<D>; n++) mixed.at[i][n] *= keep;
      for (int j = 0; j < COLUMNS<D>; j++) {
        const float weight = expf(masked[j] - base);
        sums[i] += weight;
        weights.at[down + DOWN * i][across + ACROSS * j] = weight;
      }
    }
    // The scores are complete: the values replace the keys.
    __syncthreads();
    load(others, sizes.head_dim, count, [&](int j) { return row.value(s + j); });
    __syncthreads();
    mixed.add(weights, others);
    __syncthreads();
  }

  const long long of_head = (place.row * sizes.heads + place.head) * sizes.time;
  for (int i = 0; i < ROWS<D>; i++) {
    const int t = begin + down + DOWN * i;
    const float sum = sum_across(sums[i]), inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    for (int n = 0; n < NUMBERS<D>; n++) mixed.at[i][n] *= inverse;
    if (across == 0 && t < sizes.time) log_sums[of_head + t] = t < row.frames ? most[i] + logf(sum) : 0.0f;
  }
  mixed.lay_out(others);
  __syncthreads();
  y += place.row * sizes.time * row.width + place.head * sizes.head_dim;
  store(others, sizes.head_dim, min(TILE<D>, sizes.time - begin),
              [&](int i) { return y + (begin + i) * row.width; });
}

// Gradients of the queries, and along = sum of dy * y, which the gradients of the keys need. The grid has a block for
// each tile of queries. With weights P: dS = P * (dY V^T - along), dQ = dS K.
template <int D, typename T>
__device__ void backward_queries(Sizes sizes, const T *qkv, const T *keys, const T *values, const float *seen,
                                 const int *lengths, const float *cos, const float *sin, const T *y, const T *dy,
                                 const float *log_sums, T *dqkv, float *along) {
  __shared__ Heads<D> queries, dmixed, tile_keys, tile_values;
  __shared__ Weights<D> dscores;
  const Place<D> place(sizes, 0);
  const Row<T> row(sizes, qkv, keys, values, seen, lengths, place.row, place.head);
  const Rotation rotation{cos, sin, sizes.head_dim / 2, sizes.interleaved};
  const int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS;
  const int begin = place.first, end = min(begin + TILE<D>, row.frames);
  const int oldest = max(begin - sizes.window + 1, -row.past);
  const long long of_y = place.row * sizes.time * row.width + place.head * sizes.head_dim;
  const long long of_head = (place.row * sizes.heads + place.head) * sizes.time;

  load_turned(queries, rotation, end - begin, begin - oldest, sizes.scale(),
              [&](int i) { return row.query(begin + i); });
  load(dmixed, sizes.head_dim, end - begin, [&](int i) { return dy + of_y + (begin + i) * row.width; });
  __syncthreads();
  float log_sum[ROWS<D>], own_along[ROWS<D>];
  for (int i = 0; i < ROWS<D>; i++) {
    const int t = begin + down + DOWN * i;
    float sum = 0.0f;
    for (int n = across; t < end && n < sizes.head_dim; n += ACROSS)
      sum += dmixed.at[down + DOWN * i][n] * read(y + of_y + t * row.width + n);
    own_along[i] = sum_across(sum);
    log_sum[i] = t < end ? log_sums[of_head + t] : 0.0f;
    if (across == 0 && t < sizes.time) along[of_head + t] = own_along[i];
  }

  Mixed<D> dqueries;
  for (int s = oldest; s < end; s += TILE<D>) {
    const int count = min(TILE<D>, end - s);
    load_turned(tile_keys, rotation, count, s - oldest, 1.0f, [&](int j) { return row.key(s + j); });
    load(tile_values, sizes.head_dim, count, [&](int j) { return row.value(s + j); });
    __syncthreads();
    const Products<D> scores(queries, tile_keys), dweights(dmixed, tile_values);
    for (int i = 0; i < ROWS<D>; i++)
      for (int j = 0; j < COLUMNS<D>; j++) {
        const bool sees = row.sees(begin + down + DOWN * i, s + across + ACROSS * j);
        const float weight = sees ? expf(scores.at[i][j] - log_sum[i]) : 0.0f;
        dscores.at[down + DOWN * i][across + ACROSS * j] = weight * (dweights.at[i][j] - own_along[i]);
      }
    __syncthreads();
    dqueries.add(dscores, tile_keys);
    __syncthreads();
  }
  dqueries.lay_out(queries);
  __syncthreads();
  dqkv += place.row * sizes.time * 3 * row.width + place.head * sizes.head_dim;
  store_turned_back(queries, rotation, min(TILE<D>, sizes.time - begin), begin - oldest, sizes.scale(),
                          [&](int i) { return dqkv + (begin + i) * 3 * row.width; });
}

// Gradients of keys and values, including the cached ones if `cached`. The grid has a block for each tile of keys, from
// frame -window on if `cached`, else from 0. With weights P and dS = P * (dY V^T - along): dV = P^T dY, dK = dS^T Q.
template <int D, typename T>
__device__ void backward_keys(Sizes sizes, const T *qkv, const T *keys, const T *values, const float *seen,
                              const int *lengths, const float *cos, const float *sin, const T *dy,
                              const float *log_sums, const float *along, T *dqkv, T *dkeys, T *dvalues, int cached) {
  __shared__ Heads<D> queries, dmixed, tile_keys, tile_values;
  __shared__ Weights<D> weights, dscores;
  const Place<D> place(sizes, cached ? -sizes.window : 0);
  const Row<T> row(sizes, qkv, keys, values, seen, lengths, place.row, place.head);
  const Rotation rotation{cos, sin, sizes.head_dim / 2, sizes.interleaved};
  const int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS;
  const int begin = place.first, count = min(TILE<D>, sizes.time - begin);
  // Queries before `end` see one of the keys.
  const int end = min(row.frames, begin + TILE<D> - 1 + sizes.window);
  const long long of_y = place.row * sizes.time * row.width + place.head * sizes.head_dim;
  const long long of_head = (place.row * sizes.heads + place.head) * sizes.time;

  load_turned(tile_keys, rotation, count, 0, 1.0f, [&](int i) { return row.key(begin + i); });
  load(tile_values, sizes.head_dim, count, [&](int i) { return row.value(begin + i); });
  Mixed<D> dk, dv;
  for (int t = max(begin, 0); t < end; t += TILE<D>) {
    load_turned(queries, rotation, min(TILE<D>, end - t), t - begin, sizes.scale(),
                [&](int j) { return row.query(t + j); });
    load(dmixed, sizes.head_dim, min(TILE<D>, end - t), [&](int j) { return dy + of_y + (t + j) * row.width; });
    __syncthreads();
    const Products<D> scores(tile_keys, queries), dweights(tile_values, dmixed);
    for (int j = 0; j < COLUMNS<D>; j++) {
      const int query = t + across + ACROSS * j;
      const float log_sum = query < end ? log_sums[of_head + query] : 0.0f;
      const float own_along = query < end ? along[of_head + query] : 0.0f;
      for (int i = 0; i < ROWS<D>; i++) {
        const bool sees = query < end && row.sees(query, begin + down + DOWN * i);
        const float weight = sees ? expf(scores.at[i][j] - log_sum) : 0.0f;
        weights.at[down + DOWN * i][across + ACROSS * j] = weight;
        dscores.at[down + DOWN * i][across + ACROSS * j] = weight * (dweights.at[i][j] - own_along);
      }
    }
    __syncthreads();
    dv.add(weights, dmixed);
    dk.add(dscores, queries);
    __syncthreads();
  }
  dk.lay_out(queries);
  dv.lay_out(dmixed);
  __syncthreads();
  const long long of_ring = place.row * sizes.window * row.width + place.head * sizes.head_dim;
  dqkv += place.row * sizes.time * 3 * row.width + place.head * sizes.head_dim;
  store_turned_back(queries, rotation, count, 0, 1.0f, [&](int i) {
    const int s = begin + i;
    return s >= 0 ? dqkv + (3LL * s + 1) * row.width : dkeys + of_ring + row.slot(s);
  });
  store(dmixed, sizes.head_dim, count, [&](int i) {
    const int s = begin + i;
    return s >= 0 ? dqkv + (3LL * s + 2) * row.width : dvalues + of_ring + row.slot(s);
  });
}

// Computes only the last query of each row, y [b, 1, heads * head_dim]: 0 where the row has no frame. The grid has a
// block for each head in each row; half a warp computes one frame at a time, in the order of age.
template <int D, typename T>
__device__ void last(Sizes sizes, const T *qkv, const T *keys, const T *values, const float *seen, const int *lengths,
                     const float *cos, const float *sin, T *y) {
  constexpr int GROUPS = DOWN;
  constexpr int PAIRS = D / 2 / ACROSS;
  __shared__ float mixed[GROUPS][D], most[GROUPS], sums[GROUPS];
  const int head = int(blockIdx.x % sizes.heads);
  const long long at = blockIdx.x / sizes.heads;
  const Row<T> row(sizes, qkv, keys, values, seen, lengths, at, head);
  const Rotation rotation{cos, sin, sizes.head_dim / 2, sizes.interleaved};
  const int across = threadIdx.x % ACROSS, group = threadIdx.x / ACROSS;
  const int t = row.frames - 1, frames = t < 0 ? 0 : min(sizes.window, row.past + t + 1);

  float a[PAIRS] = {}, b[PAIRS] = {};
  for (int n = 0; n < PAIRS; n++)
    if (const int i = across + ACROSS * n; t >= 0 && i < rotation.half) {
      a[n] = read(row.query(t) + rotation.first(i)) * sizes.scale();
      b[n] = read(row.query(t) + rotation.second(i)) * sizes.scale();
    }
  float own[2 * PAIRS] = {}, own_most = -INFINITY, own_sum = 0.0f;
  // All threads of a warp execute the same number of rounds.
  for (int first = 0; first < frames; first += GROUPS) {
    const int age = first + group;
    const bool there = age < frames;
    float score = 0.0f, value[2 * PAIRS] = {};
    for (int n = 0; n < PAIRS; n++)
      if (const int i = across + ACROSS * n; there && i < rotation.half) {
        float c = read(row.key(t - age) + rotation.first(i)), d = read(row.key(t - age) + rotation.second(i));
        // The query has position 0, the key position -age.
        rotation.turn_back(c, d, i, age);
        score += a[n] * c + b[n] * d;
      }
    for (int n = 0; n < 2 * PAIRS; n++)
      if (const int i = across + ACROSS * n; there && i < sizes.head_dim) value[n] = read(row.value(t - age) + i);
    score = sum_across(score);
    if (!there) continue;
    const float largest = fmaxf(own_most, score);
    const float keep = expf(own_most - largest), weight = expf(score - largest);
    own_most = largest;
    own_sum = own_sum * keep + weight;
    for (int n = 0; n < 2 * PAIRS; n++) own[n] = own[n] * keep + weight * value[n];
  }
  for (int n = 0; n < 2 * PAIRS; n++) mixed[group][across + ACROSS * n] = own[n];
  if (across == 0) {
    most[group] = own_most;
    sums[group] = own_sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < sizes.head_dim; i += THREADS) {
    float largest = most[0], numerator = 0.0f, sum = 0.0f;
    for (int g = 1; g < GROUPS; g++) largest = fmaxf(largest, most[g]);
    for (int g = 0; frames > 0 && g < GROUPS; g++) {
      const float weight = expf(most[g] - largest);
      numerator += weight * mixed[g][i];
      sum += weight * sums[g];
    }
    write(y + at * row.width + head * sizes.head_dim + i, frames > 0 ? numerator / sum : 0.0f);
  }
}

// An element of the ring after a sequence, and its source; `blockIdx.y` selects keys or values. The grid has a thread
// for each element.
struct Slot {
  // `ring` is the element's index in the ring, negative past the end; `qkv` is the index of its source, negative if the
  // slot keeps its element.
  long long ring = -1, qkv = -1;
  bool first_of_row;
  long long row;

  __device__ Slot(Sizes sizes, const float *seen, const int *lengths, long long batch) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x, width = sizes.width();
    row = i / width / sizes.window;
    if (row >= batch) return;
    ring = i;
    const long long column = i % width;
    const int slot = int(i / width % sizes.window), frames = lengths ? lengths[row] : sizes.time;
    first_of_row = column == 0 && slot == 0 && blockIdx.y == 0;
    // Distance from this slot to the slot of the last frame.
    const int back = (int(seen[row]) % sizes.window + frames - 1 - slot + sizes.window) % sizes.window;
    if (back < frames) qkv = ((row * sizes.time + frames - 1 - back) * 3 + 1 + blockIdx.y) * width + column;
  }
};

// Writes the rings after a sequence, in place if they are also the rings before it; a null ring is skipped. `after` is
// the count of frames seen: it rises to `window` and then stays in window..2 * window.
template <typename T>
__device__ void append(Sizes sizes, const T *qkv, const float *seen, const int *lengths, const T *keys,
                       const T *values, T *next_keys, T *next_values, float *after, long long batch) {
  const Slot slot(sizes, seen, lengths, batch);
  if (slot.ring < 0) return;
  const T *ring = blockIdx.y == 0 ? keys : values;
  T *next = blockIdx.y == 0 ? next_keys : next_values;
  if (next && slot.qkv >= 0) next[slot.ring] = qkv[slot.qkv];
  if (next && slot.qkv < 0 && next != ring) next[slot.ring] = ring[slot.ring];
  if (after && slot.first_of_row) {
    const int frames = int(seen[slot.row]) + (lengths ? lengths[slot.row] : sizes.time);
    after[slot.row] = float(frames < sizes.window ? frames : sizes.window + frames % sizes.window);
  }
}

// Splits the gradients of the rings after a sequence into gradients of the rings before it and of the sequence; dqkv is
// 0 for a frame that is in no ring.
template <typename T>
__device__ void append_backward(Sizes sizes, const float *seen, const int *lengths, const T *dnext_keys,
                                const T *dnext_values, T *dkeys, T *dvalues, T *dqkv, long long batch) {
  const Slot slot(sizes, seen, lengths, batch);
  const T *dnext = blockIdx.y == 0 ? dnext_keys : dnext_values;
  T *dring = blockIdx.y == 0 ? dkeys : dvalues;
  if (slot.ring < 0 || !dnext) return;
  if (slot.qkv >= 0) {
    dqkv[slot.qkv] = dnext[slot.ring];
    write(dring + slot.ring, 0.0f);
  } else {
    dring[slot.ring] = dnext[slot.ring];
  }
}

} // namespace

#define ATTENTION(name, T, D)                                                                                         \
  extern "C" __global__ void __launch_bounds__(THREADS, 4) attention_##name##_##D##_forward(                             \
      const T *__restrict__ qkv, const T *__restrict__ keys, const T *__restrict__ values,                            \
      const float *__restrict__ seen, const int *__restrict__ lengths, const float *__restrict__ cos,                 \
      const float *__restrict__ sin, T *__restrict__ y, float *__restrict__ log_sums, int time, int heads,            \
      int head_dim, int window, int interleaved) {                                                                    \
    forward<D>(Sizes{time, heads, head_dim, window, interleaved}, qkv, keys, values, seen, lengths, cos, sin, y,      \
               log_sums);                                                                                             \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(THREADS, 3) attention_##name##_##D##_backward_queries(                    \
      const T *__restrict__ qkv, const T *__restrict__ keys, const T *__restrict__ values,                            \
      const float *__restrict__ seen, const int *__restrict__ lengths, const float *__restrict__ cos,                 \
      const float *__restrict__ sin, const T *__restrict__ y, const T *__restrict__ dy,                               \
      const float *__restrict__ log_sums, T *__restrict__ dqkv, float *__restrict__ along, int time, int heads,       \
      int head_dim, int window, int interleaved) {                                                                    \
    backward_queries<D>(Sizes{time, heads, head_dim, window, interleaved}, qkv, keys, values, seen, lengths, cos,     \
                        sin, y, dy, log_sums, dqkv, along);                                                           \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(THREADS, 3) attention_##name##_##D##_backward_keys(                       \
      const T *__restrict__ qkv, const T *__restrict__ keys, const T *__restrict__ values,                            \
      const float *__restrict__ seen, const int *__restrict__ lengths, const float *__restrict__ cos,                 \
      const float *__restrict__ sin, const T *__restrict__ dy, const float *__restrict__ log_sums,                    \
      const float *__restrict__ along, T *__restrict__ dqkv, T *__restrict__ dkeys, T *__restrict__ dvalues,          \
      int time, int heads, int head_dim, int window, int interleaved, int cached) {                                   \
    backward_keys<D>(Sizes{time, heads, head_dim, window, interleaved}, qkv, keys, values, seen, lengths, cos, sin,   \
                     dy, log_sums, along, dqkv, dkeys, dvalues, cached);                                              \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(THREADS, 4) attention_##name##_##D##_last(                                \
      const T *__restrict__ qkv, const T *__restrict__ keys, const T *__restrict__ values,                            \
      const float *__restrict__ seen, const int *__restrict__ lengths, const float *__restrict__ cos,                 \
      const float *__restrict__ sin, T *__restrict__ y, int time, int heads, int head_dim, int window,                \
      int interleaved) {                                                                                              \
    last<D>(Sizes{time, heads, head_dim, window, interleaved}, qkv, keys, values, seen, lengths, cos, sin, y);        \
  }

#define APPEND(name, T)                                                                                               \
  ATTENTION(name, T, 32)                                                                                              \
  ATTENTION(name, T, 64)                                                                                              \
  ATTENTION(name, T, 128)                                                                                             \
  extern "C" __global__ void attention_##name##_append(                                                               \
      const T *__restrict__ qkv, const float *__restrict__ seen, const int *__restrict__ lengths, const T *keys,      \
      const T *values, T *next_keys, T *next_values, float *__restrict__ after, long long batch, int time, int heads, \
      int head_dim, int window) {                                                                                     \
    append(Sizes{time, heads, head_dim, window, 0}, qkv, seen, lengths, keys, values, next_keys, next_values, after,  \
           batch);                                                                                                    \
  }                                                                                                                   \
  extern "C" __global__ void attention_##name##_append_backward(                                                      \
      const float *__restrict__ seen, const int *__restrict__ lengths, const T *__restrict__ dnext_keys,              \
      const T *__restrict__ dnext_values, T *__restrict__ dkeys, T *__restrict__ dvalues, T *__restrict__ dqkv,       \
      long long batch, int time, int heads, int head_dim, int window) {                                               \
    append_backward(Sizes{time, heads, head_dim, window, 0}, seen, lengths, dnext_keys, dnext_values, dkeys, dvalues, \
                    dqkv, batch);                                                                                     \
  }

APPEND(f32, float)
APPEND(bf16, __nv_bfloat16)
