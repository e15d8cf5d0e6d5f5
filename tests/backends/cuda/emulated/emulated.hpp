// device.cuh on a CPU: every thread is a fiber, and a waiting fiber yields to the others.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#define DEVICE inline
#define GRID_CONSTANT
#define KERNEL(cluster, threads) void

struct uint2 {
    u32 x, y;
};
struct uint4 {
    u32 x, y, z, w;
};

template <class T> inline T read_as(const void *at) {
    T value;
    memcpy(&value, at, sizeof value);
    return value;
}

struct ThreadBarrier {
    int arrived = 0, phase = 0;
    void arrive_and_wait(int of);
};

struct Warp {
    ThreadBarrier barrier_;
    float values[32];
    u32 operands[32][6];
};

struct Cta {
    std::vector<u8> memory;
    ThreadBarrier barriers[4];
    std::vector<Warp> warps;
    u8 *shared() { return (u8 *)(((u64)memory.data() + 127) / 128 * 128); }
};

struct Fiber {
    ucontext_t context;  // entry point
    jmp_buf place;       // where it yielded
    std::unique_ptr<u8[]> stack;
    Cta *cta;
    int thread, index;
    bool has_started = false, is_done = false;
};

static u32 random_state = 1;
inline u32 next_random() { return (random_state = random_state * 1664525 + 1013904223) >> 16; }

static Fiber *now;
static jmp_buf scheduler;
static int grid;
static std::vector<Cta> ctas;
static std::vector<int> cluster_arrivals;  // threads per cluster that have arrived

// longjmp instead of swapcontext, which makes a system call each time.
inline void yield() {
    if (_setjmp(now->place) == 0) _longjmp(scheduler, 1);
}
inline void resume(Fiber &fiber) {
    now = &fiber;
    if (_setjmp(scheduler)) return;
    if (fiber.has_started) _longjmp(fiber.place, 1);
    fiber.has_started = true;
    setcontext(&fiber.context);
}

inline void ThreadBarrier::arrive_and_wait(int of) {
    const int seen = phase;
    if (++arrived == of) arrived = 0, ++phase;
    else
        while (phase == seen) yield();
}

inline int thread_index() { return now->thread; }
inline int cta_index() { return now->index; }
inline u8 *shared_memory() { return now->cta->shared(); }
inline Warp &current_warp() { return now->cta->warps[now->thread / 32]; }

struct CountedBarrier {
    short arrivals, missing;  // threads plus bytes
    u32 phase;
};

inline void barrier_init(u64 *barrier, int arrivals) {
    CountedBarrier made{(short)arrivals, (short)arrivals, 0};
    memcpy(barrier, &made, sizeof made);
}
inline void fence_barrier_init() {}
inline void barrier_count(u64 *at, int less) {
    CountedBarrier *barrier = (CountedBarrier *)at;
    if ((barrier->missing -= less) == 0) barrier->missing = barrier->arrivals, ++barrier->phase;
}
inline void barrier_arrive(u64 *at) { barrier_count(at, 1); }
inline void barrier_expect(u64 *at, u32 bytes) { barrier_count(at, 1 - (int)bytes); }
inline void barrier_wait(u64 *at, u32 parity) {
    while ((((CountedBarrier *)at)->phase & 1) == parity) yield();
}
inline u64 evict_first_policy() { return 0; }
inline void bulk_copy(void *to, const void *from, u32 bytes, u64 *barrier, u64) {
    memcpy(to, from, bytes);
    barrier_arrive(barrier);
}

inline void async_copy_16(void *to, const void *from) { memcpy(to, from, 16); }
inline void wait_async_copies() {}

inline void named_barrier(int name, int threads) { now->cta->barriers[name].arrive_and_wait(threads); }
inline void sync_warp() { current_warp().barrier_.arrive_and_wait(32); }

inline float shuffle(float value, int lane) {
    Warp &warp = current_warp();
    warp.values[now->thread % 32] = value;
    sync_warp();
    const float found = warp.values[lane];
    sync_warp();
    return found;
}
inline float shuffle_xor(float value, int mask) { return shuffle(value, now->thread % 32 ^ mask); }

inline int cluster_size() { return grid / (int)cluster_arrivals.size(); }
inline void cluster_arrive() { ++cluster_arrivals[now->index / cluster_size()]; }
inline void cluster_wait() {
    while (cluster_arrivals[now->index / cluster_size()] < cluster_size() * (int)now->cta->warps.size() * 32) yield();
}
template <int count> inline void decrease_registers() {}
template <int count> inline void increase_registers() {}

// Relaxed stores become visible after a random delay, in any order, unless a fence comes first. Plain stores become visible
// at a fence or at the end of the launch.
constexpr u32 SENTINEL = 0xffffffff;
struct PendingStore {
    u8 *to, bytes[16];
    int size, due;
    Cta *by;
    u64 *barrier;  // that counts its bytes, or null
};
static std::vector<PendingStore> pending_stores;
static int turn;

template <class Is> inline void deliver(Is is_there) {
    size_t kept = 0;
    for (auto &one : pending_stores) {
        if (!is_there(one)) {
            pending_stores[kept++] = one;
            continue;
        }
        memcpy(one.to, one.bytes, one.size);
        if (one.barrier) barrier_count(one.barrier, one.size);
    }
    pending_stores.resize(kept);
}
constexpr int AT_END = 0x7fffffff;
inline void enqueue(void *to, const void *from, int size, u64 *barrier = nullptr, int due = turn + (int)(next_random() % 9)) {
    PendingStore one{(u8 *)to, {}, size, due, now->cta, barrier};
    memcpy(one.bytes, from, size);
    pending_stores.push_back(one);
}
inline void fence_gpu() {
    deliver([](const PendingStore &one) { return one.by == now->cta; });
}
inline void count(int *counter) {
    ++*counter;
    yield();
}
template <int count> inline void store_to_peer(float *to, const float (&values)[count], u64 *barrier, int cta) {
    Cta &other = ctas[now->index / cluster_size() * cluster_size() + cta];
    const long long apart = other.shared() - shared_memory();
    enqueue((u8 *)to + apart, values, sizeof values, (u64 *)((u8 *)barrier + apart));
}
template <class T, int count> inline void store_relaxed(T *to, const T (&from)[count]) { enqueue(to, from, sizeof from); }
inline void store_relaxed(float *to, float from) { enqueue(to, &from, sizeof from); }
inline int load_acquire(const int *counter) {
    yield();
    return *(volatile const int *)counter;
}
inline void pdl_wait() {}
inline void pdl_launch() {}

inline u32 word_of(float value) { return read_as<u32>(&value); }
inline u32 max_word(u32 a, u32 b) { return a > b ? a : b; }
inline bool warp_any(bool is_mine) {
    Warp &warp = current_warp();
    warp.values[now->thread % 32] = is_mine;
    sync_warp();
    bool found = false;
    for (float value : warp.values) found = found || value;
    sync_warp();
    return found;
}
inline uint4 load_relaxed_16(const void *at) {
    const uint4 found = read_as<uint4>(at);
    if (max_word(max_word(found.x, found.y), max_word(found.z, found.w)) == SENTINEL) yield();
    return found;
}
inline u32 load_relaxed_4(const void *at) {
    const u32 found = read_as<u32>(at);
    if (found == SENTINEL) yield();
    return found;
}
template <int count> inline void load_relaxed(float (&to)[count], const float *at) {
    memcpy(to, at, sizeof to);
    for (float value : to)
        if (word_of(value) == SENTINEL) return yield();
}
inline void prefetch_line(const void *at) { (void)*(volatile const u8 *)at; }
inline uint4 load_cg_16(const void *at) { return read_as<uint4>(at); }
inline float load_cg(const float *at) { return *at; }
template <int count> inline void load_cg_floats(float (&to)[count], const float *at) { memcpy(to, at, sizeof to); }
template <int count> inline void load_cg_halves(u16 (&to)[count], const u16 *at) { memcpy(to, at, sizeof to); }
template <int count> inline void store_halves(u16 *at, const u16 (&from)[count]) {
    enqueue(at, from, sizeof from, nullptr, AT_END);
}
inline void store_8(void *at, u32 word) { memset(at, (u8)word, 8); }
inline void store_16(void *at, u32 word) { memset(at, (u8)word, 16); }
template <int count> inline void load_shared_floats(float (&to)[count], const float *at) { memcpy(to, at, sizeof to); }
inline uint4 load_shared_16(const u8 *at) { return read_as<uint4>(at); }
inline uint2 load_shared_8(const u8 *at) { return read_as<uint2>(at); }

inline float float_of(u32 bits) { return read_as<float>(&bits); }
inline u32 bits_of(float value) { return read_as<u32>(&value); }
inline float from_bf16(u16 bits) { return float_of((u32)bits << 16); }
inline u16 to_bf16(float value) {
    const u32 bits = bits_of(value);
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline u16 to_fp16(float value) { return read_as<u16>(std::vector<_Float16>{(_Float16)value}.data()); }
inline float of_fp16(u16 bits) { return (float)read_as<_Float16>(&bits); }

inline float of_e4m3(u8 bits) {
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    const float size = exponent ? std::ldexp(8.0f + fraction, exponent - 10) : std::ldexp((float)fraction, -9);
    return bits & 128 ? -size : size;
}
inline u32 e4m3_to_fp16(u16 pair) { return to_fp16(of_e4m3((u8)pair)) | (u32)to_fp16(of_e4m3((u8)(pair >> 8))) << 16; }

inline void broadcast_halves(u32 word, u32 &lower, u32 &upper) { lower = word % 65536 * 65537, upper = word / 65536 * 65537; }
inline u32 fma_fp16x2(u32 a, u32 b, u32 c) {
    u32 found = 0;
    for (int i = 0; i < 32; i += 16)  // fp32 holds the product exactly
        found |= (u32)to_fp16(of_fp16((u16)(a >> i)) * of_fp16((u16)(b >> i)) + of_fp16((u16)(c >> i))) << i;
    return found;
}

template <class Number>
inline void multiply_as(Number number, float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    Warp &warp = current_warp();
    const int lane = now->thread % 32, group = lane / 4, pair = lane % 4;
    const u32 mine[6] = {a0, a1, a2, a3, b0, b1};
    memcpy(warp.operands[lane], mine, sizeof mine);
    sync_warp();
    for (int i = 0; i < 4; ++i) {
        const int high = i / 2, column = pair * 2 + i % 2;
        for (int k = 0; k < 16; ++k) {
            const int of = k % 8 / 2, half = k / 8;
            const u32 a = warp.operands[group * 4 + of][half * 2 + high], b = warp.operands[column * 4 + of][4 + half];
            c[i] += number((u16)(a >> k % 2 * 16)) * number((u16)(b >> k % 2 * 16));
        }
    }
    sync_warp();
}
inline void mma_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    multiply_as(from_bf16, c, a0, a1, a2, a3, b0, b1);
}
inline void mma_fp16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    multiply_as(of_fp16, c, a0, a1, a2, a3, b0, b1);
}
inline float rounded_square(float x) { return x * x; }
inline float exponential(float x) { return std::exp(x); }
inline float divide(float a, float b) { return a / b; }
inline float power_of_two(float x) { return std::exp2(x); }
inline float maximum(float a, float b) { return a > b ? a : b; }
inline float inverse_root(float x) { return 1.0f / std::sqrt(x); }

static void (*body)();
static void enter() {
    body();
    now->is_done = true;
    _longjmp(scheduler, 1);
}

constexpr int STACK = 32768, STRIDE = 1009;  // a prime, so that every fiber is scheduled
constexpr int DELAY_TURNS = 50;
static int delayed_warp = -1;  // warp of CTA 0 that runs only every DELAY_TURNS turns

inline bool is_delayed(const Fiber &fiber) {
    return fiber.index == 0 && fiber.thread / 32 == delayed_warp && turn % DELAY_TURNS > 0;
}

// Run `kernel` in every thread of every CTA, in turns that start at a random thread and mix warps and CTAs.
inline void run_grid(void (*kernel)(), int count, int cluster, int threads, int shared_bytes) {
    body = kernel, grid = count;
    ctas = std::vector<Cta>(count), cluster_arrivals = std::vector<int>(count / cluster);
    std::vector<std::unique_ptr<Fiber>> fibers;
    for (int index = 0; index < count; ++index) {
        ctas[index].memory.resize(shared_bytes + 128, 0xff);  // unwritten shared memory is NaN
        ctas[index].warps.resize(threads / 32);
        for (int thread = 0; thread < threads; ++thread) {
            fibers.emplace_back(new Fiber);
            Fiber &fiber = *fibers.back();
            fiber.stack.reset(new u8[STACK]), fiber.cta = &ctas[index];
            fiber.thread = thread, fiber.index = index;
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.get(), fiber.context.uc_stack.ss_size = STACK;
            makecontext(&fiber.context, enter, 0);
        }
    }
    for (bool is_busy = true; is_busy; ++turn) {
        deliver([](const PendingStore &one) { return one.due <= turn; });
        is_busy = false;
        for (int at = 0, to = (int)(next_random() % fibers.size()); at < (int)fibers.size(); ++at, to += STRIDE) {
            Fiber &fiber = *fibers[to % fibers.size()];
            if (fiber.is_done) continue;
            is_busy = true;
            if (!is_delayed(fiber)) resume(fiber);
        }
    }
    deliver([](const PendingStore &) { return true; });
}
