// What the kernels ask of the chip, a function for each instruction. tests/backends/cuda/emulated/emulated.hpp has the same
// functions for a processor without a GPU, so that the kernels can be run, slowly, anywhere.
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
// `team` programs are on one part of the chip, each alone on its multiprocessor.
#define KERNEL(team, threads) extern "C" __global__ void __cluster_dims__(team, 1, 1) __launch_bounds__(threads, 1)

DEVICE int thread_index() { return threadIdx.x; }
DEVICE int program_index() { return blockIdx.x; }

DEVICE u8 *shared_memory() {
    extern __shared__ __align__(128) u8 memory[];
    return memory;
}

DEVICE u32 shared_address(const void *at) { return (u32)__cvta_generic_to_shared(at); }

// Counted barriers in shared memory: of arrivals, and of bytes that copies bring.

DEVICE void barrier_make(u64 *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

DEVICE void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

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

// One arrival, and `bytes` to wait for.
DEVICE void barrier_expect(u64 *barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Weights go past the second-level cache's better places: nobody reads them twice.
DEVICE u64 read_once() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Bytes from memory into shared memory; `barrier` has one arrival and these bytes to wait for.
DEVICE void copy_bytes(void *to, const void *from, u32 bytes, u64 *barrier, u64 policy) {
    barrier_expect(barrier, bytes);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
        ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy) : "memory");
}

// Copies of a few bytes that this thread asks for, and waits for.

DEVICE void copy_16(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

DEVICE void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }

DEVICE void sync_some(int name, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory"); }
DEVICE void sync_warp() { __syncwarp(); }

DEVICE float from_lane(float value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }
DEVICE float from_lane_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

// Within a team, whose programs have the same things at the same places of their shared memory.

DEVICE void join_team() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
DEVICE void meet_team() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

DEVICE u32 address_of(const void *at, int program) {
    u32 found;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(shared_address(at)), "r"(program));
    return found;
}

// Numbers to where another program of the team has `to`; its `barrier` counts their bytes.
DEVICE void send(float *to, const float (&values)[2], u64 *barrier, int program) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 ::"r"(address_of(to, program)), "f"(values[0]), "f"(values[1]), "r"(address_of(barrier, program))
                 : "memory");
}
DEVICE void send(float *to, const float (&values)[4], u64 *barrier, int program) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(address_of(to, program)), "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]),
                 "r"(address_of(barrier, program)) : "memory");
}

// Registers a thread, of four warps at once.
template <int count> DEVICE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count)); }
template <int count> DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count)); }

// Between programs. What was written before `settle` is seen by who has seen a count behind it. To settle takes as long
// as a store and its answer, so numbers that others wait for are handed over without: what they will replace is UNSET,
// and who reads looks whether it still is.

constexpr u32 UNSET = 0xffffffff;  // no number, and none that a conversion gives

DEVICE void settle() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

DEVICE void count(int *counter) {
    asm volatile("red.relaxed.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}

DEVICE int see(const int *counter) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}

// In whole words: of a smaller number half a word could be there.
DEVICE void hand(u16 *at, const u16 (&from)[4]) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};"
                 ::"l"(at), "r"(from[0] | (u32)from[1] << 16), "r"(from[2] | (u32)from[3] << 16) : "memory");
}
DEVICE void hand(u16 *at, const u16 (&from)[2]) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(from[0] | (u32)from[1] << 16) : "memory");
}
DEVICE void hand(float *at, const float (&from)[4]) {
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(at), "f"(from[0]), "f"(from[1]), "f"(from[2]), "f"(from[3]) : "memory");
}
DEVICE void hand(float *at, const float (&from)[2]) {
    asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(at), "f"(from[0]), "f"(from[1]) : "memory");
}
DEVICE void hand(float *at, float from) {
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(at), "f"(from) : "memory");
}

DEVICE uint4 handed_16(const void *at) {
    uint4 found;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w) : "l"(at) : "memory");
    return found;
}
DEVICE u32 handed_4(const void *at) {
    u32 found;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(at) : "memory");
    return found;
}
DEVICE void handed(float (&to)[4], const float *at) {
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3]) : "l"(at) : "memory");
}
DEVICE void handed(float (&to)[2], const float *at) {
    asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(to[0]), "=f"(to[1]) : "l"(at) : "memory");
}

DEVICE u32 word_of(float value) { return __float_as_uint(value); }
DEVICE u32 larger_word(u32 a, u32 b) { return a > b ? a : b; }
DEVICE bool is_any(bool is_mine) { return __any_sync(0xffffffffu, is_mine); }  // of a warp

// Between launches: this one may begin before the one before it ends, and then waits for what that one wrote.

DEVICE void wait_turn() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void let_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Have a line brought into the second-level cache.
DEVICE void ask_line(const void *at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

// Loads past the first-level cache, which does not know what other programs write.

DEVICE uint4 fresh_16(const void *at) { return __ldcg((const uint4 *)at); }
DEVICE float fresh_float(const float *at) { return __ldcg(at); }
DEVICE void fresh_floats(float (&to)[4], const float *at) {
    const float4 four = __ldcg((const float4 *)at);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
DEVICE void fresh_floats(float (&to)[2], const float *at) {
    const float2 two = __ldcg((const float2 *)at);
    to[0] = two.x, to[1] = two.y;
}

DEVICE void fresh_halves(u16 (&to)[4], const u16 *at) {
    const ushort4 four = __ldcg((const ushort4 *)at);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
DEVICE void fresh_halves(u16 (&to)[2], const u16 *at) {
    const ushort2 two = __ldcg((const ushort2 *)at);
    to[0] = two.x, to[1] = two.y;
}

// Two or four numbers at once.

DEVICE void store_8(void *at, u32 word) { *(uint2 *)at = make_uint2(word, word); }
DEVICE void store_16(void *at, u32 word) { *(uint4 *)at = make_uint4(word, word, word, word); }
DEVICE void store_halves(u16 *at, const u16 (&from)[4]) {
    *(ushort4 *)at = make_ushort4(from[0], from[1], from[2], from[3]);
}
DEVICE void store_halves(u16 *at, const u16 (&from)[2]) { *(ushort2 *)at = make_ushort2(from[0], from[1]); }
DEVICE void shared_floats(float (&to)[4], const float *at) {
    const float4 four = *(const float4 *)at;
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
DEVICE void shared_floats(float (&to)[2], const float *at) {
    const float2 two = *(const float2 *)at;
    to[0] = two.x, to[1] = two.y;
}

DEVICE uint4 shared_16(const u8 *at) { return *(const uint4 *)at; }
DEVICE uint2 shared_8(const u8 *at) { return *(const uint2 *)at; }

// c (16, 8) += a (16, 16) b (16, 8), with the parts that this lane has.

DEVICE void multiply_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

DEVICE void multiply_fp16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Numbers.

DEVICE float of_bf16(u16 bits) { return __uint_as_float((u32)bits << 16); }

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

// Two numbers of e4m3 as two of fp16.
DEVICE u32 widen(u16 pair) {
    u32 wide;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(wide) : "h"(pair));
    return wide;
}

// Each half of a word twice. Said so, it is a way to read an operand; as a permutation of bytes it is an instruction.
DEVICE void spread(u32 word, u32 &lower, u32 &upper) {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; mov.b32 %0, {low, low}; mov.b32 %1, {high, high}; }"
        : "=r"(lower), "=r"(upper) : "r"(word));
}

// a * b + c, of two numbers of fp16 each.
DEVICE u32 multiply_add(u32 a, u32 b, u32 c) {
    u32 sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

DEVICE float rounded_square(float x) { return __fmul_rn(x, x); }  // in no sum is it left unrounded
DEVICE float exponential(float x) { return __expf(x); }
DEVICE float divide(float a, float b) { return __fdividef(a, b); }  // to two units of the last place
DEVICE float power_of_two(float x) { return exp2f(x); }
DEVICE float maximum(float a, float b) { return fmaxf(a, b); }
DEVICE float inverse_root(float x) { return rsqrtf(x); }
#endif
