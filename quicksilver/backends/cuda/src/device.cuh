// Device primitives, one function per instruction. tests/backends/cuda/emulated/emulated.hpp implements the same functions
// on a CPU, so that the kernels can be tested without a GPU.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef EMULATED
#include "emulated.hpp"
#else

#define INFINITY __int_as_float(0x7f800000)
#define DEVICE __device__ __forceinline__
#define GRID_CONSTANT __grid_constant__
// `team` CTAs form a cluster; one CTA per SM.
#define KERNEL(cluster, threads) extern "C" __global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(threads, 1)

DEVICE int thread_index() { return threadIdx.x; }
DEVICE int cta_index() { return blockIdx.x; }

DEVICE u8 *shared_memory() {
    extern __shared__ __align__(128) u8 memory[];
    return memory;
}

DEVICE u32 shared_address(const void *at) { return (u32)__cvta_generic_to_shared(at); }

// mbarriers in shared memory: they count arrivals and bytes of asynchronous copies.

DEVICE void barrier_init(u64 *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void barrier_arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

DEVICE void barrier_wait(u64 *barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\n"
        "bra again;\n"
        "over:\n"
        "}\n" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

// Arrive once and expect `bytes`.
DEVICE void barrier_expect(u64 *barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// L2 policy evict-first: weights are read once.
DEVICE u64 evict_first_policy() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Bulk copy from global to shared memory; `barrier` gets one arrival and expects these bytes.
DEVICE void bulk_copy(void *to, const void *from, u32 bytes, u64 *barrier, u64 policy) {
    barrier_expect(barrier, bytes);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
        ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy) : "memory");
}

// Asynchronous 16-byte copies of this thread.

DEVICE void async_copy_16(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

DEVICE void wait_async_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

DEVICE void named_barrier(int name, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory"); }
DEVICE void sync_warp() { __syncwarp(); }

DEVICE float shuffle(float value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }
DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

// Within a cluster. All CTAs have the same layout of shared memory.

DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

DEVICE u32 peer_address(const void *at, int program) {
    u32 found;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(shared_address(at)), "r"(program));
    return found;
}

// Store to the same place of another CTA's shared memory; its `barrier` counts the bytes.
DEVICE void store_to_peer(float *to, const float (&values)[2], u64 *barrier, int program) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 ::"r"(peer_address(to, program)), "f"(values[0]), "f"(values[1]), "r"(peer_address(barrier, program))
                 : "memory");
}
DEVICE void store_to_peer(float *to, const float (&values)[4], u64 *barrier, int program) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(peer_address(to, program)), "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]),
                 "r"(peer_address(barrier, program)) : "memory");
}

// Registers per thread of a warpgroup.
template <int count> DEVICE void decrease_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count)); }
template <int count> DEVICE void increase_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count)); }

// Between CTAs. Stores before a fence are visible to a CTA that has seen a later counter increment. A fence costs a round
// trip to memory, so data that other CTAs poll is published without one: buffers start as SENTINEL, and consumers poll
// until it is gone.

constexpr u32 SENTINEL = 0xffffffff;  // a NaN that no conversion produces

DEVICE void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

DEVICE void count(int *counter) {
    asm volatile("red.relaxed.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}

DEVICE int load_acquire(const int *counter) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}

// Relaxed stores and loads in whole 32-bit words, so that a word is never half written.
DEVICE void store_relaxed(u16 *at, const u16 (&from)[4]) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};"
                 ::"l"(at), "r"(from[0] | (u32)from[1] << 16), "r"(from[2] | (u32)from[3] << 16) : "memory");
}
DEVICE void store_relaxed(u16 *at, const u16 (&from)[2]) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(from[0] | (u32)from[1] << 16) : "memory");
}
DEVICE void store_relaxed(float *at, const float (&from)[4]) {
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(at), "f"(from[0]), "f"(from[1]), "f"(from[2]), "f"(from[3]) : "memory");
}
DEVICE void store_relaxed(float *at, const float (&from)[2]) {
    asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(at), "f"(from[0]), "f"(from[1]) : "memory");
}
DEVICE void store_relaxed(float *at, float from) {
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(at), "f"(from) : "memory");
}

DEVICE uint4 load_relaxed_16(const void *at) {
    uint4 found;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w) : "l"(at) : "memory");
    return found;
}
DEVICE u32 load_relaxed_4(const void *at) {
    u32 found;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(at) : "memory");
    return found;
}
DEVICE void load_relaxed(float (&to)[4], const float *at) {
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3]) : "l"(at) : "memory");
}
DEVICE void load_relaxed(float (&to)[2], const float *at) {
    asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(to[0]), "=f"(to[1]) : "l"(at) : "memory");
}

DEVICE u32 word_of(float value) { return __float_as_uint(value); }
DEVICE u32 max_word(u32 a, u32 b) { return a > b ? a : b; }
DEVICE bool warp_any(bool is_mine) { return __any_sync(0xffffffffu, is_mine); }  // over a warp

// Programmatic dependent launch.

DEVICE void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void pdl_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Prefetch a cache line into L2.
DEVICE void prefetch_line(const void *at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

// Loads that bypass L1, which is not coherent with stores of other CTAs.

DEVICE uint4 load_cg_16(const void *at) { return __ldcg((const uint4 *)at); }
DEVICE float load_cg(const float *at) { return __ldcg(at); }
DEVICE void load_cg_floats(float (&to)[4], const float *at) {
    const float4 four = __ldcg((const float4 *)at);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
DEVICE void load_cg_floats(float (&to)[2], const float *at) {
    const float2 two = __ldcg((const float2 *)at);
    to[0] = two.x, to[1] = two.y;
}

DEVICE void load_cg_halves(u16 (&to)[4], const u16 *at) {
    const ushort4 four = __ldcg((const ushort4 *)at);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
DEVICE void load_cg_halves(u16 (&to)[2], const u16 *at) {
    const ushort2 two = __ldcg((const ushort2 *)at);
    to[0] = two.x, to[1] = two.y;
}

// Vector loads and stores.

DEVICE void store_8(void *at, u32 word) { *(uint2 *)at = make_uint2(word, word); }
DEVICE void store_16(void *at, u32 word) { *(uint4 *)at = make_uint4(word, word, word, word); }
DEVICE void store_halves(u16 *at, const u16 (&from)[4]) {
    *(ushort4 *)at = make_ushort4(from[0], from[1], from[2], from[3]);
}
DEVICE void store_halves(u16 *at, const u16 (&from)[2]) { *(ushort2 *)at = make_ushort2(from[0], from[1]); }
DEVICE void load_shared_floats(float (&to)[4], const float *at) {
    const float4 four = *(const float4 *)at;
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
DEVICE void load_shared_floats(float (&to)[2], const float *at) {
    const float2 two = *(const float2 *)at;
    to[0] = two.x, to[1] = two.y;
}

DEVICE uint4 load_shared_16(const u8 *at) { return *(const uint4 *)at; }
DEVICE uint2 load_shared_8(const u8 *at) { return *(const uint2 *)at; }

// MMA: c (16, 8) += a (16, 16) b (16, 8), with this lane's fragments.

DEVICE void mma_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

DEVICE void mma_fp16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Conversions and arithmetic.

DEVICE float from_bf16(u16 bits) { return __uint_as_float((u32)bits << 16); }

DEVICE u16 to_bf16(float value) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

DEVICE u16 to_fp16(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// Two e4m3 values to fp16.
DEVICE u32 e4m3_to_fp16(u16 pair) {
    u32 wide;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(wide) : "h"(pair));
    return wide;
}

// Broadcast each half of a word. Written this way it becomes an operand modifier, not an instruction.
DEVICE void broadcast_halves(u32 word, u32 &lower, u32 &upper) {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; mov.b32 %0, {low, low}; mov.b32 %1, {high, high}; }"
        : "=r"(lower), "=r"(upper) : "r"(word));
}

// a * b + c on pairs of fp16.
DEVICE u32 fma_fp16x2(u32 a, u32 b, u32 c) {
    u32 sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

DEVICE float rounded_square(float x) { return __fmul_rn(x, x); }  // not contracted into a fused multiply-add
DEVICE float exponential(float x) { return __expf(x); }
DEVICE float divide(float a, float b) { return __fdividef(a, b); }  // error up to 2 ulp
DEVICE float power_of_two(float x) { return exp2f(x); }
DEVICE float maximum(float a, float b) { return fmaxf(a, b); }
DEVICE float inverse_root(float x) { return rsqrtf(x); }
#endif
