// Runs mma_tiles.cuh on a CPU: a thread per CUDA thread, and the instructions as the PTX ISA specifies
// them (sections on ldmatrix and mma.m16n8k16), so that a test can compare sums. Copies are immediate.
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __align__(n) alignas(n)
#define __syncthreads() block->all.arrive_and_wait()

struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
struct Index { int x, y, z; };
using std::max;

struct Warp {
  std::barrier<> together{32};
  const uint16_t* rows[32];
  unsigned a[32][4], b[32][2];
};
struct Block {
  explicit Block(int threads) : all(threads), warps(threads / 32) {}
  std::barrier<> all;
  std::vector<Warp> warps;
};
thread_local Index threadIdx, blockIdx;
thread_local Block* block;

namespace tvmtune {
typedef unsigned short Element;

inline float value_of(uint16_t bits, bool bfloat16) {
  if (bfloat16) {
    const uint32_t wide = uint32_t(bits) << 16;
    float result;
    std::memcpy(&result, &wide, 4);
    return result;
  }
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float size = exponent ? std::ldexp(1024.f + fraction, exponent - 25) : std::ldexp(float(fraction), -24);
  return bits >> 15 ? -size : size;
}

inline void copy_async(Element* to, const Element* from, bool inside) {
  if (inside) std::memcpy(to, from, 16); else std::memset(to, 0, 16);
}

// Four matrices of 8x8: lanes 8i to 8i + 7 name the rows of matrix i. A lane gets two neighbors of row
// lane / 4, or of column lane / 4 if the matrices are transposed.
inline void matrices(unsigned (&to)[4], const Element* from, bool transposed) {
  const int lane = threadIdx.x % 32;
  Warp& warp = block->warps[threadIdx.x / 32];
  warp.rows[lane] = from;
  warp.together.arrive_and_wait();
  for (int i = 0; i < 4; ++i) {
    const uint16_t* const* rows = warp.rows + 8 * i;
    const int one = lane / 4, two = lane % 4 * 2;
    const unsigned low = transposed ? rows[two][one] : rows[one][two];
    const unsigned high = transposed ? rows[two + 1][one] : rows[one][two + 1];
    to[i] = low | high << 16;
  }
  warp.together.arrive_and_wait();
}
inline void load_matrices(unsigned (&to)[4], const Element* from) { matrices(to, from, false); }
inline void load_transposed(unsigned (&to)[4], const Element* from) { matrices(to, from, true); }

template <bool BFLOAT16>
inline void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const int lane = threadIdx.x % 32;
  Warp& warp = block->warps[threadIdx.x / 32];
  std::memcpy(warp.a[lane], a, sizeof a);
  warp.b[lane][0] = b0;
  warp.b[lane][1] = b1;
  warp.together.arrive_and_wait();
  auto of_a = [&](int row, int k) {  // registers: rows 0-7 and 8-15 of terms 0-7, then of terms 8-15
    const unsigned pair = warp.a[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
    return value_of(pair >> k % 2 * 16 & 0xffff, BFLOAT16);
  };
  auto of_b = [&](int k, int column) {
    const unsigned pair = warp.b[column * 4 + k % 8 / 2][k / 8];
    return value_of(pair >> k % 2 * 16 & 0xffff, BFLOAT16);
  };
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 16; ++k)
      sums[i] += of_a(lane / 4 + i / 2 * 8, k) * of_b(k, lane % 4 * 2 + i % 2);
  warp.together.arrive_and_wait();
}
}  // namespace tvmtune

template <class Kernel>
void launch(int x, int y, int z, int threads, size_t shared_bytes, Kernel kernel) {
  for (int at = 0; at < x * y * z; ++at) {
    Block shared(threads);
    // Not a number in either type, where nothing was written.
    std::vector<uint4> memory(shared_bytes / 16 + 1, uint4{~0u, ~0u, ~0u, ~0u});
    std::vector<std::thread> running;
    for (int thread = 0; thread < threads; ++thread)
      running.emplace_back([&, thread] {
        threadIdx = {thread, 0, 0};
        blockIdx = {at % x, at / x % y, at / x / y};
        block = &shared;
        kernel((float*)memory.data());
      });
    for (auto& each : running) each.join();
  }
}
