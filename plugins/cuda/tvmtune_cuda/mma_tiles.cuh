// Convolutions as implicit GEMM on tensor cores: one tile of sums per thread block. For sm_80 and later.
//
// A thread block computes TILE_ROWS pixels times TILE_COLUMNS channels. Its warps form a grid of
// WARP_ROWS x WARP_COLUMNS, each with a part of the tile in registers (mma.sync.m16n8k16). Tiles of
// TILE_TERMS terms of both operands are copied to shared memory STAGES - 1 tiles ahead (cp.async), with
// rows padded by 16 bytes so that ldmatrix reads without bank conflicts.
namespace tvmtune {

typedef unsigned short Element;  // float16 or bfloat16

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return (unsigned)__cvta_generic_to_shared(pointer);
}

// Copies 16 bytes to shared memory, or fills them with zeros.
__device__ __forceinline__ void copy_async(Element* to, const Element* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(shared_address(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");
}

__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const Element* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(from)) : "memory");
}

__device__ __forceinline__ void load_transposed(unsigned (&to)[4], const Element* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(from)) : "memory");
}

template <bool BFLOAT16>
__device__ __forceinline__ void multiply_add(float (&sums)[4], const unsigned (&a)[4],
                                             unsigned b0, unsigned b1) {
  if constexpr (BFLOAT16)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Sums of the tile of this thread block into `to` (TILE_ROWS x TILE_COLUMNS, row by row, in shared
// memory), synchronized. The tiles of operands come first in the same memory. blockIdx.x counts tiles of channels, .y tiles of pixels, .z parts of TERMS terms.
//
// data: IMAGES x HEIGHT x WIDTH x DEPTH; weights: terms x CHANNELS, a term being a position of the filter
// and a channel of the data. Pixels beyond the last image and terms beyond TERMS count as zero.
template <bool BFLOAT16, int TILE_ROWS, int TILE_COLUMNS, int TILE_TERMS, int STAGES, int WARP_ROWS,
          int WARP_COLUMNS, int TERMS, int CHANNELS, int IMAGES, int HEIGHT, int WIDTH, int DEPTH,
          int FILTER_COLUMNS, int OUT_HEIGHT, int OUT_WIDTH, int STRIDE_Y, int STRIDE_X,
          int DILATION_Y, int DILATION_X, int TOP, int LEFT>
__device__ __forceinline__ void convolution_tile(float* to, const float* /* last */,
                                                 const void* data_, const void* weights_) {
  const Element* data = (const Element*)data_;
  const Element* weights = (const Element*)weights_;
  static_assert(DEPTH % 8 != 0 || TERMS % 8 == 0, "eight terms are neighbors");
  constexpr int THREADS = 32 * WARP_ROWS * WARP_COLUMNS;
  constexpr int ROW_A = TILE_TERMS + 8, ROW_B = TILE_COLUMNS + 8;
  constexpr int CHUNKS_A = TILE_ROWS * TILE_TERMS / 8, CHUNKS_B = TILE_TERMS * TILE_COLUMNS / 8;
  constexpr int EACH_A = (CHUNKS_A + THREADS - 1) / THREADS;
  constexpr int EACH_B = (CHUNKS_B + THREADS - 1) / THREADS;
  constexpr int TILES = (TERMS + TILE_TERMS - 1) / TILE_TERMS;
  constexpr int FRAGMENTS_A = TILE_ROWS / WARP_ROWS / 16;
  constexpr int FRAGMENTS_B = TILE_COLUMNS / WARP_COLUMNS / 8;
  constexpr int STAGE_A = TILE_ROWS * ROW_A, STAGE_B = TILE_TERMS * ROW_B;
  Element* const a = (Element*)to;
  Element* const b = a + STAGES * STAGE_A;
  const int thread = threadIdx.x;
  const int first_row = blockIdx.y * TILE_ROWS, first_column = blockIdx.x * TILE_COLUMNS;
  const int first_term = blockIdx.z * TERMS;

  // Where the window of each of this thread's pixels begins.
  int image[EACH_A], y[EACH_A], x[EACH_A];
#pragma unroll
  for (int i = 0; i < EACH_A; ++i) {
    const int pixel = first_row + (thread + i * THREADS) / (TILE_TERMS / 8);
    const int inside = pixel % (OUT_HEIGHT * OUT_WIDTH);
    image[i] = pixel / (OUT_HEIGHT * OUT_WIDTH);
    // Beyond the last pixel every row of the window lies outside.
    y[i] = image[i] < IMAGES ? inside / OUT_WIDTH * STRIDE_Y - TOP : HEIGHT;
    x[i] = inside % OUT_WIDTH * STRIDE_X - LEFT;
  }

  auto load = [&](int stage, int tile) {
#pragma unroll
    for (int i = 0; i < EACH_A; ++i) {
      const int chunk = thread + i * THREADS;
      if (CHUNKS_A % THREADS != 0 && chunk >= CHUNKS_A) break;
      const int term = tile * TILE_TERMS + chunk % (TILE_TERMS / 8) * 8;
      Element* place = a + stage * STAGE_A + chunk / (TILE_TERMS / 8) * ROW_A
                       + chunk % (TILE_TERMS / 8) * 8;
      // The element's index, or -1.
      auto index = [&](int term) {
        const int position = (first_term + term) / DEPTH;
        const int row = y[i] + position / FILTER_COLUMNS * DILATION_Y;
        const int column = x[i] + position % FILTER_COLUMNS * DILATION_X;
        const bool inside = term < TERMS && (unsigned)row < HEIGHT && (unsigned)column < WIDTH;
        return inside ? ((image[i] * HEIGHT + row) * WIDTH + column) * DEPTH
                          + (first_term + term) % DEPTH
                      : -1;
      };
      if constexpr (DEPTH % 8 == 0) {
        const int at = index(term);
        copy_async(place, data + max(at, 0), at >= 0);
      } else {  // an image's few channels: the eight terms lie apart
        __align__(16) Element values[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const int at = index(term + e);
          values[e] = at >= 0 ? data[at] : 0;
        }
        *(uint4*)place = *(uint4*)values;
      }
    }
#pragma unroll
    for (int i = 0; i < EACH_B; ++i) {
      const int chunk = thread + i * THREADS;
      if (CHUNKS_B % THREADS != 0 && chunk >= CHUNKS_B) break;
      const int row = chunk / (TILE_COLUMNS / 8), column = chunk % (TILE_COLUMNS / 8) * 8;
      const bool inside = tile * TILE_TERMS + row < TERMS;
      const int term = inside ? first_term + tile * TILE_TERMS + row : 0;
      copy_async(b + stage * STAGE_B + row * ROW_B + column,
                 weights + term * CHANNELS + first_column + column, inside);
    }
  };

  float sums[FRAGMENTS_A][FRAGMENTS_B][4] = {};
  const int warp = thread / 32, lane = thread % 32;
  const int warp_row = warp / WARP_COLUMNS * (TILE_ROWS / WARP_ROWS);
  const int warp_column = warp % WARP_COLUMNS * (TILE_COLUMNS / WARP_COLUMNS);
#pragma unroll
  for (int tile = 0; tile < STAGES - 1; ++tile) {
    if (tile < TILES) load(tile, tile);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  for (int tile = 0; tile < TILES; ++tile) {
    asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
    __syncthreads();  // the tile has arrived, and the one before has been read
    if (tile + STAGES - 1 < TILES) load((tile + STAGES - 1) % STAGES, tile + STAGES - 1);
    asm volatile("cp.async.commit_group;" ::: "memory");
    const Element* rows =
        a + tile % STAGES * STAGE_A + (warp_row + lane % 16) * ROW_A + lane / 16 * 8;
    const Element* columns =
        b + tile % STAGES * STAGE_B + lane % 16 * ROW_B + warp_column + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < TILE_TERMS; k += 16) {
      unsigned of_a[FRAGMENTS_A][4], of_b[FRAGMENTS_B / 2][4];
#pragma unroll
      for (int i = 0; i < FRAGMENTS_A; ++i) load_matrices(of_a[i], rows + i * 16 * ROW_A + k);
#pragma unroll
      for (int j = 0; j < FRAGMENTS_B / 2; ++j)
        load_transposed(of_b[j], columns + k * ROW_B + j * 16);
#pragma unroll
      for (int i = 0; i < FRAGMENTS_A; ++i)
#pragma unroll
        for (int j = 0; j < FRAGMENTS_B; ++j)
          multiply_add<BFLOAT16>(sums[i][j], of_a[i], of_b[j / 2][j % 2 * 2],
                                 of_b[j / 2][j % 2 * 2 + 1]);
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();  // all tiles have been read: their memory is free
#pragma unroll
  for (int i = 0; i < FRAGMENTS_A; ++i)
#pragma unroll
    for (int j = 0; j < FRAGMENTS_B; ++j) {
      const int row = warp_row + i * 16 + lane / 4, column = warp_column + j * 8 + lane % 4 * 2;
      *(float2*)&to[row * TILE_COLUMNS + column] = make_float2(sums[i][j][0], sums[i][j][1]);
      *(float2*)&to[(row + 8) * TILE_COLUMNS + column] = make_float2(sums[i][j][2], sums[i][j][3]);
    }
  __syncthreads();
}

}  // namespace tvmtune
