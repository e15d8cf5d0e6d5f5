// device.cuh for a processor without a GPU: every thread is a fiber, and one that waits lets the others run.
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
#define KERNEL(team, threads) void

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

struct Meeting {
    int came = 0, times = 0;
    void attend(int of);
};

struct Warp {
    Meeting meeting;
    float values[32];
    u32 operands[32][6];
};

struct Program {
    std::vector<u8> memory;
    Meeting meetings[4];
    std::vector<Warp> warps;
    u8 *shared() { return (u8 *)(((u64)memory.data() + 127) / 128 * 128); }
};

struct Fiber {
    ucontext_t context;  // where it begins
    jmp_buf place;       // where it waits
    std::unique_ptr<u8[]> stack;
    Program *program;
    int thread, index;
    bool has_begun = false, is_over = false;
};

static u32 dice = 1;
inline u32 roll() { return (dice = dice * 1664525 + 1013904223) >> 16; }

static Fiber *now;
static jmp_buf scheduler;
static int grid;
static std::vector<Program> programs;
static std::vector<int> teams;  // threads of each that have joined

// Jumps, because a change of contexts asks the kernel each time.
inline void pass() {
    if (_setjmp(now->place) == 0) _longjmp(scheduler, 1);
}
inline void resume(Fiber &fiber) {
    now = &fiber;
    if (_setjmp(scheduler)) return;
    if (fiber.has_begun) _longjmp(fiber.place, 1);
    fiber.has_begun = true;
    setcontext(&fiber.context);
}

inline void Meeting::attend(int of) {
    const int seen = times;
    if (++came == of) came = 0, ++times;
    else
        while (times == seen) pass();
}

inline int thread_index() { return now->thread; }
inline int program_index() { return now->index; }
inline u8 *shared_memory() { return now->program->shared(); }
inline Warp &my_warp() { return now->program->warps[now->thread / 32]; }

struct CountedBarrier {
    short arrivals, missing;  // of threads and, as many more, of bytes
    u32 times;
};

inline void barrier_make(u64 *barrier, int arrivals) {
    CountedBarrier made{(short)arrivals, (short)arrivals, 0};
    memcpy(barrier, &made, sizeof made);
}
inline void barriers_made() {}
inline void barrier_count(u64 *at, int less) {
    CountedBarrier *barrier = (CountedBarrier *)at;
    if ((barrier->missing -= less) == 0) barrier->missing = barrier->arrivals, ++barrier->times;
}
inline void barrier_arrive(u64 *at) { barrier_count(at, 1); }
inline void barrier_expect(u64 *at, u32 bytes) { barrier_count(at, 1 - (int)bytes); }
inline void barrier_wait(u64 *at, u32 parity) {
    while ((((CountedBarrier *)at)->times & 1) == parity) pass();
}
inline u64 read_once() { return 0; }
inline void copy_bytes(void *to, const void *from, u32 bytes, u64 *barrier, u64) {
    memcpy(to, from, bytes);
    barrier_arrive(barrier);
}

inline void copy_16(void *to, const void *from) { memcpy(to, from, 16); }
inline void copies_done() {}

inline void sync_some(int name, int threads) { now->program->meetings[name].attend(threads); }
inline void sync_warp() { my_warp().meeting.attend(32); }

inline float from_lane(float value, int lane) {
    Warp &warp = my_warp();
    warp.values[now->thread % 32] = value;
    sync_warp();
    const float found = warp.values[lane];
    sync_warp();
    return found;
}
inline float from_lane_xor(float value, int mask) { return from_lane(value, now->thread % 32 ^ mask); }

inline int team_size() { return grid / (int)teams.size(); }
inline void join_team() { ++teams[now->index / team_size()]; }
inline void meet_team() {
    while (teams[now->index / team_size()] < team_size() * (int)now->program->warps.size() * 32) pass();
}
template <int count> inline void give_registers() {}
template <int count> inline void take_registers() {}

// What is handed to other programs arrives later than counts, in any order, unless it is settled before; what is only
// stored in memory arrives when it is settled, or at the end.
constexpr u32 UNSET = 0xffffffff;
struct Parcel {
    u8 *to, bytes[16];
    int size, due;
    Program *by;
    u64 *barrier;  // that counts its bytes, or none
};
static std::vector<Parcel> on_their_way;
static int turn;

template <class Is> inline void land(Is is_there) {
    size_t kept = 0;
    for (auto &one : on_their_way) {
        if (!is_there(one)) {
            on_their_way[kept++] = one;
            continue;
        }
        memcpy(one.to, one.bytes, one.size);
        if (one.barrier) barrier_count(one.barrier, one.size);
    }
    on_their_way.resize(kept);
}
constexpr int AT_THE_END = 0x7fffffff;
inline void post(void *to, const void *from, int size, u64 *barrier = nullptr, int due = turn + (int)(roll() % 9)) {
    Parcel one{(u8 *)to, {}, size, due, now->program, barrier};
    memcpy(one.bytes, from, size);
    on_their_way.push_back(one);
}
inline void settle() {
    land([](const Parcel &one) { return one.by == now->program; });
}
inline void count(int *counter) {
    ++*counter;
    pass();
}
template <int count> inline void send(float *to, const float (&values)[count], u64 *barrier, int program) {
    Program &other = programs[now->index / team_size() * team_size() + program];
    const long long apart = other.shared() - shared_memory();
    post((u8 *)to + apart, values, sizeof values, (u64 *)((u8 *)barrier + apart));
}
template <class T, int count> inline void hand(T *to, const T (&from)[count]) { post(to, from, sizeof from); }
inline void hand(float *to, float from) { post(to, &from, sizeof from); }
inline int see(const int *counter) {
    pass();
    return *(volatile const int *)counter;
}
inline void wait_turn() {}
inline void let_next() {}

inline u32 word_of(float value) { return read_as<u32>(&value); }
inline u32 larger_word(u32 a, u32 b) { return a > b ? a : b; }
inline bool is_any(bool is_mine) {
    Warp &warp = my_warp();
    warp.values[now->thread % 32] = is_mine;
    sync_warp();
    bool found = false;
    for (float value : warp.values) found = found || value;
    sync_warp();
    return found;
}
inline uint4 handed_16(const void *at) {
    const uint4 found = read_as<uint4>(at);
    if (larger_word(larger_word(found.x, found.y), larger_word(found.z, found.w)) == UNSET) pass();
    return found;
}
inline u32 handed_4(const void *at) {
    const u32 found = read_as<u32>(at);
    if (found == UNSET) pass();
    return found;
}
template <int count> inline void handed(float (&to)[count], const float *at) {
    memcpy(to, at, sizeof to);
    for (float value : to)
        if (word_of(value) == UNSET) return pass();
}
inline void ask_line(const void *at) { (void)*(volatile const u8 *)at; }
inline uint4 fresh_16(const void *at) { return read_as<uint4>(at); }
inline float fresh_float(const float *at) { return *at; }
template <int count> inline void fresh_floats(float (&to)[count], const float *at) { memcpy(to, at, sizeof to); }
template <int count> inline void fresh_halves(u16 (&to)[count], const u16 *at) { memcpy(to, at, sizeof to); }
template <int count> inline void store_halves(u16 *at, const u16 (&from)[count]) {
    post(at, from, sizeof from, nullptr, AT_THE_END);
}
inline void store_8(void *at, u32 word) { memset(at, (u8)word, 8); }
inline void store_16(void *at, u32 word) { memset(at, (u8)word, 16); }
template <int count> inline void shared_floats(float (&to)[count], const float *at) { memcpy(to, at, sizeof to); }
inline uint4 shared_16(const u8 *at) { return read_as<uint4>(at); }
inline uint2 shared_8(const u8 *at) { return read_as<uint2>(at); }

inline float float_of(u32 bits) { return read_as<float>(&bits); }
inline u32 bits_of(float value) { return read_as<u32>(&value); }
inline float of_bf16(u16 bits) { return float_of((u32)bits << 16); }
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
inline u32 widen(u16 pair) { return to_fp16(of_e4m3((u8)pair)) | (u32)to_fp16(of_e4m3((u8)(pair >> 8))) << 16; }

inline void spread(u32 word, u32 &lower, u32 &upper) { lower = word % 65536 * 65537, upper = word / 65536 * 65537; }
inline u32 multiply_add(u32 a, u32 b, u32 c) {
    u32 found = 0;
    for (int i = 0; i < 32; i += 16)  // fp32 holds the product exactly
        found |= (u32)to_fp16(of_fp16((u16)(a >> i)) * of_fp16((u16)(b >> i)) + of_fp16((u16)(c >> i))) << i;
    return found;
}

template <class Number>
inline void multiply_as(Number number, float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    Warp &warp = my_warp();
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
inline void multiply_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    multiply_as(of_bf16, c, a0, a1, a2, a3, b0, b1);
}
inline void multiply_fp16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
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
    now->is_over = true;
    _longjmp(scheduler, 1);
}

constexpr int STACK = 32768, STRIDE = 1009;  // a prime, so that every fiber has its turn
constexpr int LAZY_TURNS = 50;
static int lazy_warp = -1;  // of the first program, which comes only every so many turns

inline bool is_resting(const Fiber &fiber) {
    return fiber.index == 0 && fiber.thread / 32 == lazy_warp && turn % LAZY_TURNS > 0;
}

// Run `kernel` in every thread of every program, in turns, each from another thread on and warps and programs mixed.
inline void run_grid(void (*kernel)(), int count, int team, int threads, int shared_bytes) {
    body = kernel, grid = count;
    programs = std::vector<Program>(count), teams = std::vector<int>(count / team);
    std::vector<std::unique_ptr<Fiber>> fibers;
    for (int index = 0; index < count; ++index) {
        programs[index].memory.resize(shared_bytes + 128, 0xff);  // what nobody wrote is no number
        programs[index].warps.resize(threads / 32);
        for (int thread = 0; thread < threads; ++thread) {
            fibers.emplace_back(new Fiber);
            Fiber &fiber = *fibers.back();
            fiber.stack.reset(new u8[STACK]), fiber.program = &programs[index];
            fiber.thread = thread, fiber.index = index;
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.get(), fiber.context.uc_stack.ss_size = STACK;
            makecontext(&fiber.context, enter, 0);
        }
    }
    for (bool is_busy = true; is_busy; ++turn) {
        land([](const Parcel &one) { return one.due <= turn; });
        is_busy = false;
        for (int at = 0, to = (int)(roll() % fibers.size()); at < (int)fibers.size(); ++at, to += STRIDE) {
            Fiber &fiber = *fibers[to % fibers.size()];
            if (fiber.is_over) continue;
            is_busy = true;
            if (!is_resting(fiber)) resume(fiber);
        }
    }
    land([](const Parcel &) { return true; });
}
