// A layer from one attention to the next in one launch: the merge of attention's splits, output, gate and up, down, and
// the next layer's qkv, for up to 32 rows. A program a multiprocessor stays on the chip through all of it.
//
// A linear's outputs go in tiles of 16, its depth in ranges as long as the registers hold of an input. The warps of a
// program multiply equal parts of a range; their sums are added in the order of the warps, those of ranges in theirs.
// So a row's numbers depend neither on the rows beside it nor on their number. Behind a norm there are many tiles: every
// program has an equal share of them and goes through all ranges. Onto the residual stream there are few: programs form
// sets, a set has a share of the tiles, and each of its programs one range.
//
// What a warp multiplies for one tile and range is a slice. Every warp has a ring of slots in shared memory and asks for
// the next slice as soon as one is used up, through all four linears: while programs wait for an input that the whole
// chip makes, the weights that will meet it are on their way. Slices lie in memory as lanes read them (between.py).
//
// Canvas rows wear an adapter, W x + B A x. A has so few outputs that every program multiplies all of it with its range
// of x, as tiles before its own; B is a little more depth for one of the warps.
//
// The shape comes from the compiler's command line: PROGRAMS, MULTIPLIERS (warps that multiply), ROWS, DIM, FFN, HEADS,
// KV_HEADS, HEAD_DIM, RANK (of the canvas adapter, or 0), SPLITS (of attention), HEAD_NORM, BIAS, FP8, RING, and each
// linear's ranges (O_RANGES ...).
#include "machine.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS;         // of which the first MULTIPLIERS multiply
constexpr int BLOCK = 32;                              // of the depth, that a warp reads at once
constexpr int BLOCK_BYTES = FP8 ? 512 : 1024;          // 16 outputs over a block
constexpr int ROW_TILES = ROWS / 8, ROWS_EACH = ROWS / 16;
constexpr int SUM_STRIDE = 20;                         // floats between rows of an item's sums: no bank twice
constexpr int SUMS = MULTIPLIERS * ROWS * SUM_STRIDE;
constexpr int QKV_HEADS = HEADS + 2 * KV_HEADS, Q_DIM = HEADS * HEAD_DIM, QKV_DIM = QKV_HEADS * HEAD_DIM;
constexpr int RANK_TILES = RANK / 16, RANK_BLOCKS = (RANK + BLOCK - 1) / BLOCK, RANK_DEPTH = RANK_BLOCKS * BLOCK;
constexpr float SHRINK = FP8 ? 1.0f / 64 : 1.0f;       // of inputs beside fp8 weights, which are fp16

enum { O, GATE_UP, DOWN, QKV, NUM_LINEARS };

template <int kind, int depth, int outputs, int ranges> struct Linear {
    static constexpr int KIND = kind, DEPTH = depth, TILES = outputs / 16, RANGES = ranges;
    static constexpr bool IS_TALL = kind == O || kind == DOWN;
    static constexpr int SETS = IS_TALL ? PROGRAMS / ranges : PROGRAMS;
    static constexpr int MOST_TILES = (TILES + SETS - 1) / SETS;  // of a set
    static constexpr int RANGE = depth / ranges, BLOCKS = RANGE / (MULTIPLIERS * BLOCK);
    static constexpr int SLICE_BYTES = BLOCKS * BLOCK_BYTES;
    static_assert(RANGE % (MULTIPLIERS * BLOCK) == 0 && outputs % 16 == 0, "shape");
};

static_assert(RANK == 0 || !FP8, "an adapter is 16-bit, as the weights beside it");

typedef Linear<O, Q_DIM, DIM, O_RANGES> Output;
typedef Linear<GATE_UP, DIM, 2 * FFN, GATE_UP_RANGES> GateUp;
typedef Linear<DOWN, FFN, DIM, DOWN_RANGES> Down;
typedef Linear<QKV, DIM, QKV_DIM, QKV_RANGES> Qkv;

DEVICE constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int SLOT_BYTES =
    larger(larger(Output::SLICE_BYTES, GateUp::SLICE_BYTES), larger(Down::SLICE_BYTES, Qkv::SLICE_BYTES));
// Tiles whose sums wait in shared memory, for those of further ranges or for the rest of a head.
constexpr int WAITING_TILES =
    larger(GateUp::RANGES > 1 ? GateUp::MOST_TILES : 0, Qkv::RANGES > 1 || HEAD_NORM ? Qkv::MOST_TILES : 0);

constexpr int OWN_TILES = Output::MOST_TILES + GateUp::MOST_TILES + Down::MOST_TILES + Qkv::MOST_TILES;
constexpr int MOST_OUTPUTS =
    16 * larger(larger(Output::MOST_TILES, GateUp::MOST_TILES), larger(Down::MOST_TILES, Qkv::MOST_TILES));

struct Weights {
    const u8 *w;         // packed
    const float *scale;  // of each output, with fp8
    const u8 *a, *b;     // the canvas adapter, packed: A like the weights, B by tiles
};

struct Between {
    Weights weights[NUM_LINEARS];
    const float *acc, *top, *total;  // the input, attention's splits: (SPLITS, ROWS, HEADS, HEAD_DIM), without the last
    u16 *attended;        // (ROWS, Q_DIM): the splits merged
    u16 *stream;          // (ROWS, DIM), the residual stream, bf16
    u16 *scaled;          // (ROWS, DIM): the stream times the next norm's gain
    float *squares;       // (ROWS, DIM / 16): of the stream, by tile
    u16 *ffn;             // (ROWS, FFN)
    u16 *qkv;             // (ROWS, QKV_DIM), bf16: the output
    const u16 *ffn_gain, *next_gain, *bias, *q_gain, *k_gain;
    u16 *k_cache, *v_cache;
    const float *angles;  // (positions, 2, HEAD_DIM / 2)
    const int *positions, *slots, *gate;
    float *sums;          // of tiles, (ROWS, 16), where ranges wait for each other, or a head's norm for all of it
    int *counters;        // zero before the launch
    float ffn_eps, next_eps, head_eps;
    int has_layer, has_qkv;  // what this launch is to do: three linears behind attention, the next qkv
};

// Counters: programs that have finished a linear, and that have merged; tiles of a head; programs of a set.
constexpr int DONE = 0, MERGED = NUM_LINEARS;
constexpr int HEAD_CAME = MERGED + 1, SET_CAME = HEAD_CAME + QKV_HEADS, NUM_COUNTERS = SET_CAME + 2 * PROGRAMS;

struct Shared {
    u8 ring[MULTIPLIERS][RING][SLOT_BYTES];
    float sums[2][SUMS];
    float waiting[larger(WAITING_TILES, 1)][16 * ROWS];
    float divisor[ROWS];
    int position[ROWS], slot[ROWS];
    alignas(16) float scale[FP8 ? NUM_LINEARS : 1][MOST_OUTPUTS];  // of own outputs
    alignas(16) u16 term[NUM_LINEARS][MOST_OUTPUTS];               // their gains or biases, bf16
    alignas(16) u16 low[ROWS][larger(RANK_DEPTH, 8)];  // A x of canvas rows, bf16
    alignas(16) u8 b[larger(OWN_TILES * RANK_BLOCKS * 1024, 16)];  // B of own tiles, linear by linear
    u64 full[MULTIPLIERS][RING];
};

// The slices that a warp has still to ask for: of this range `low` of A and `left` of W, then of `ranges` more, which
// begin `jump` bytes on, then those of the next linear.
struct Cursor {
    const u8 *from, *from_low;
    int kind, low, left, ranges, tiles, bytes, jump;
};

struct Worker {
    const Between &args;
    Shared &shared;
    const int thread, warp, lane;
    const u64 policy;
    Cursor cursor;
    int slot;       // of the ring, that comes next
    u32 parity;     // whether it is an even or an odd time around
    int flip;       // which of the two places for sums comes next
};

// A program's place among the shares of a linear, elsewhere for every linear, so that nobody always has the larger ones.
template <class L> DEVICE int share_of() { return (program_index() + L::KIND * (PROGRAMS / NUM_LINEARS)) % PROGRAMS; }
template <class L> DEVICE int first_tile() { return share_of<L>() % L::SETS * L::TILES / L::SETS; }
template <class L> DEVICE int end_tile() { return (share_of<L>() % L::SETS + 1) * L::TILES / L::SETS; }

DEVICE bool multiplies(const Worker &me) { return MULTIPLIERS == WARPS || me.warp < MULTIPLIERS; }

// ---- weights on their way

template <class L> DEVICE void open(Worker &me) {
    Cursor &cursor = me.cursor;
    const Weights &weights = me.args.weights[L::KIND];
    const int range = L::IS_TALL ? share_of<L>() / L::SETS : 0, first = range * L::TILES + first_tile<L>();
    cursor.from = weights.w + ((long long)first * MULTIPLIERS + me.warp) * L::SLICE_BYTES;
    cursor.from_low = weights.a + ((long long)range * RANK_TILES * MULTIPLIERS + me.warp) * L::SLICE_BYTES;
    cursor.left = cursor.tiles = range < L::RANGES ? end_tile<L>() - first_tile<L>() : 0;
    cursor.low = cursor.left > 0 ? RANK_TILES : 0;
    cursor.ranges = L::IS_TALL ? 0 : L::RANGES - 1;
    cursor.bytes = L::SLICE_BYTES;
    cursor.jump = (L::TILES - cursor.tiles) * (MULTIPLIERS * L::SLICE_BYTES);
}

// To the next linear that this launch has, and of which this program has tiles.
DEVICE void open_next(Worker &me) {
    Cursor &cursor = me.cursor;
    while (cursor.left == 0 && ++cursor.kind < NUM_LINEARS) {
        const bool is_wanted = cursor.kind == QKV ? me.args.has_qkv : me.args.has_layer;
        if (!is_wanted) continue;
        if (cursor.kind == O) open<Output>(me);
        if (cursor.kind == GATE_UP) open<GateUp>(me);
        if (cursor.kind == DOWN) open<Down>(me);
        if (cursor.kind == QKV) open<Qkv>(me);
    }
}

// Ask for the next slice, into a slot that nobody reads any more.
DEVICE void ask(Worker &me, int slot) {
    Cursor &cursor = me.cursor;
    if (cursor.left == 0) return;
    const bool is_low = RANK > 0 && cursor.low > 0;
    if (me.lane == 0) {
        const u8 *from = is_low ? cursor.from_low : cursor.from;
        copy_bytes(me.shared.ring[me.warp][slot], from, cursor.bytes, &me.shared.full[me.warp][slot], me.policy);
    }
    if (is_low) {
        --cursor.low;
        cursor.from_low += MULTIPLIERS * cursor.bytes;
        return;
    }
    cursor.from += MULTIPLIERS * cursor.bytes;
    if (--cursor.left > 0) return;
    if (cursor.ranges > 0) {
        --cursor.ranges;
        cursor.low = RANK_TILES;
        cursor.left = cursor.tiles;
        cursor.from += cursor.jump;
    } else {
        open_next(me);
    }
}

// The output that a tile's number belongs to. Of gate and up a tile has eight each; of qkv eight columns of a head, and
// their partners in the other half.
template <class L> DEVICE int output_of(int tile, int at) {
    if (L::KIND == GATE_UP) return tile * 8 + at % 8 + (at < 8 ? 0 : FFN);
    if (L::KIND != QKV) return tile * 16 + at;
    return tile / (HEAD_DIM / 16) * HEAD_DIM + tile % (HEAD_DIM / 16) * 8 + at % 8 + (at < 8 ? 0 : HEAD_DIM / 2);
}

// Where a linear's B begins in shared memory.
template <class L> DEVICE constexpr int b_begin() {
    const int behind_output = L::KIND > O ? Output::MOST_TILES : 0;
    const int behind_gates = L::KIND > GATE_UP ? GateUp::MOST_TILES : 0;
    return RANK_BLOCKS * 1024 * (behind_output + behind_gates + (L::KIND > DOWN ? Down::MOST_TILES : 0));
}

// Have what outputs will be finished with brought into shared memory: in eights, and B.
template <class L> DEVICE void ask_own(const Worker &me, const u16 *terms) {
    const Weights &weights = me.args.weights[L::KIND];
    const int first = first_tile<L>(), end = end_tile<L>();
    for (int at = me.thread; at < (end - first) * 2; at += THREADS) {
        const int output = output_of<L>(first + at / 2, at % 2 * 8);
        if (terms) copy_16(me.shared.term[L::KIND] + at * 8, terms + output);
        if (FP8) {
            copy_16(me.shared.scale[L::KIND] + at * 8, weights.scale + output);
            copy_16(me.shared.scale[L::KIND] + at * 8 + 4, weights.scale + output + 4);
        }
    }
    if (RANK > 0)
        for (int at = me.thread * 16; at < (end - first) * (RANK_BLOCKS * 1024); at += THREADS * 16)
            copy_16(me.shared.b + b_begin<L>() + at, weights.b + first * (RANK_BLOCKS * 1024) + at);
}

DEVICE void ask_constants(const Worker &me) {
    // Behind the ranks B is zero, but zero times what is no number is none.
    for (int at = me.thread; at < ROWS * (RANK_DEPTH - RANK); at += THREADS)
        me.shared.low[at % ROWS][RANK + at / ROWS] = 0;
    if (me.args.has_layer) {
        ask_own<Output>(me, me.args.ffn_gain);
        ask_own<GateUp>(me, nullptr);
        ask_own<Down>(me, me.args.next_gain);
    }
    if (me.args.has_qkv) ask_own<Qkv>(me, BIAS ? me.args.bias : nullptr);
}

// Where rows stand, which the launches before may have written.
DEVICE void ask_places(const Worker &me) {
    if (me.thread < ROWS) {
        copy_4(me.shared.position + me.thread, me.args.positions + me.thread);
        copy_4(me.shared.slot + me.thread, me.args.slots + me.thread);
    }
}

// What a sum is multiplied by, and an output's gain or bias.
template <class L> DEVICE float factor_of(const Worker &me, int tile, int output) {
    return FP8 ? me.shared.scale[L::KIND][(tile - first_tile<L>()) * 16 + output] / SHRINK : 1.0f;
}
template <class L> DEVICE float term_of(const Worker &me, int tile, int output) {
    return of_bf16(me.shared.term[L::KIND][(tile - first_tile<L>()) * 16 + output]);
}

// ---- between programs

// Wait until a counter that other programs raise has come to `goal`.
DEVICE void wait_for(Worker &me, const int *counter, int goal) {
    if (me.thread == 0)
        while (see(counter) < goal) {}
    sync_program();
}

// After the last store of all threads: raise a counter for other programs.
DEVICE void tell(Worker &me, int *counter) {
    sync_program();
    if (me.thread == 0) add_and_tell(counter, 1);
}

// ---- products

DEVICE u16 narrow(float value) {
    if (!FP8) return to_bf16(value);
    value = value * SHRINK;
    return to_fp16(value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value);
}

DEVICE void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    if (FP8) multiply_fp16(c, a0, a1, a2, a3, b0, b1);
    else multiply_bf16(c, a0, a1, a2, a3, b0, b1);
}

// Blocks of an input from `begin` on: a lane has eight numbers in a row of every block and of each of its rows. Which of
// them meet in a product is the packing's business.
template <int blocks>
DEVICE void read_input(uint4 (&x)[blocks][ROW_TILES], const Worker &me, const u16 *input, int depth, int begin) {
    const u16 *from = input + me.lane / 4 * depth + begin + me.lane % 4 * 8;
#pragma unroll
    for (int block = 0; block < blocks; ++block)
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile) x[block][tile] = fresh_16(from + tile * 8 * depth + block * BLOCK);
}

// This warp's part of a range.
template <class L>
DEVICE void read_range(uint4 (&x)[L::BLOCKS][ROW_TILES], const Worker &me, const u16 *input, int range) {
    if (multiplies(me)) read_input(x, me, input, L::DEPTH, range * L::RANGE + me.warp * (L::BLOCKS * BLOCK));
}

// One block of 16 outputs: `low` has the first eight, `high` the others, eight weights a lane each.
DEVICE void multiply_block(float (&acc)[ROW_TILES][4], uint4 low, uint4 high, const uint4 (&x)[ROW_TILES]) {
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile) multiply(acc[tile], low.x, high.x, low.y, high.y, x[tile].x, x[tile].y);
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile) multiply(acc[tile], low.z, high.z, low.w, high.w, x[tile].z, x[tile].w);
}

DEVICE uint4 widen_8(u32 four, u32 other) {
    uint4 wide;
    wide.x = widen((u16)four), wide.y = widen((u16)(four >> 16));
    wide.z = widen((u16)other), wide.w = widen((u16)(other >> 16));
    return wide;
}

// A slice from the ring times the input, onto `acc`. Two sums in turn: a product waits for the one before the last.
template <class L>
DEVICE void multiply_slice(float (&acc)[ROW_TILES][4], Worker &me, const uint4 (&x)[L::BLOCKS][ROW_TILES]) {
    if (!multiplies(me)) return;
    float other[ROW_TILES][4] = {};
    barrier_wait(&me.shared.full[me.warp][me.slot], me.parity);
    const u8 *at = me.shared.ring[me.warp][me.slot] + me.lane * 16;
#pragma unroll
    for (int block = 0; block < L::BLOCKS; ++block, at += BLOCK_BYTES) {
        const uint4 first = shared_16(at);
        const uint4 low = FP8 ? widen_8(first.x, first.y) : first;
        const uint4 high = FP8 ? widen_8(first.z, first.w) : shared_16(at + BLOCK_BYTES / 2);
        multiply_block(block % 2 ? other : acc, low, high, x[block]);
    }
    sync_warp();
    ask(me, me.slot);
    if (++me.slot == RING) me.slot = 0, me.parity ^= 1;
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[tile][i] += other[tile][i];
}

// The warps' sums side by side in shared memory. Two places in turn: who writes the one has left the other behind.
DEVICE const float *put_sums(Worker &me, const float (&acc)[ROW_TILES][4]) {
    float *sums = me.shared.sums[me.flip];
    me.flip ^= 1;
    float *mine = sums + me.warp * (ROWS * SUM_STRIDE) + me.lane / 4;
#pragma unroll
    for (int tile = 0; tile < ROW_TILES && multiplies(me); ++tile) {
        float *at = mine + (tile * 8 + me.lane % 4 * 2) * SUM_STRIDE;
        at[0] = acc[tile][0], at[SUM_STRIDE] = acc[tile][1];
        at[8] = acc[tile][2], at[SUM_STRIDE + 8] = acc[tile][3];
    }
    sync_program();
    return sums;
}

// Sums are finished by threads side by side: output thread % 16 of the tile, row thread / 16 and every 16th after it.
DEVICE int row_of(const Worker &me, int i) { return me.thread / 16 + i * 16; }

DEVICE float add_warps(const float *sums, int output, int row) {
    const float *at = sums + row * SUM_STRIDE + output;
    float total = at[0];
#pragma unroll
    for (int warp = 1; warp < MULTIPLIERS; ++warp) total += at[warp * (ROWS * SUM_STRIDE)];
    return total;
}

// ---- the canvas adapter

template <class L> DEVICE void multiply_low(Worker &me, const uint4 (&x)[L::BLOCKS][ROW_TILES]) {
#pragma unroll 1
    for (int tile = 0; tile < RANK_TILES; ++tile) {
        float acc[ROW_TILES][4] = {};
        multiply_slice<L>(acc, me, x);
        const float *sums = put_sums(me, acc);
#pragma unroll
        for (int i = 0; i < ROWS_EACH; ++i) {
            const int row = row_of(me, i), output = me.thread % 16;
            me.shared.low[row][tile * 16 + output] = to_bf16(me.args.gate[row] ? add_warps(sums, output, row) : 0.0f);
        }
    }
    if (RANK > 0) sync_program();
}

// B's term, by the last warp.
template <class L> DEVICE void add_term(float (&acc)[ROW_TILES][4], const Worker &me, int tile) {
    if (RANK == 0 || me.warp != MULTIPLIERS - 1) return;
    const u8 *b = me.shared.b + b_begin<L>() + (tile - first_tile<L>()) * (RANK_BLOCKS * 1024) + me.lane * 16;
#pragma unroll
    for (int block = 0; block < RANK_BLOCKS; ++block) {
        uint4 low[ROW_TILES];
#pragma unroll
        for (int at = 0; at < ROW_TILES; ++at)
            low[at] = shared_16((const u8 *)&me.shared.low[at * 8 + me.lane / 4][block * BLOCK + me.lane % 4 * 8]);
        multiply_block(acc, shared_16(b + block * 1024), shared_16(b + block * 1024 + 512), low);
    }
}

// One of a program's own tiles over a range: the warps' sums, to be added up.
template <class L>
DEVICE const float *multiply_tile(Worker &me, const uint4 (&x)[L::BLOCKS][ROW_TILES], int tile) {
    float acc[ROW_TILES][4] = {};
    multiply_slice<L>(acc, me, x);
    add_term<L>(acc, me, tile);
    return put_sums(me, acc);
}

// ---- what follows a linear

// silu(gate) * up: a tile has eight of each.
DEVICE void finish_gate(const Worker &me, float sum, int tile, int output, int row) {
    const float mine = sum * factor_of<GateUp>(me, tile, output) * me.shared.divisor[row], up = from_lane_xor(mine, 8);
    if (output < 8) me.args.ffn[row * FFN + tile * 8 + output] = narrow(mine / (1.0f + exponential(-mine)) * up);
}

// A raw number of qkv as a linear layer would leave it.
DEVICE float raw_qkv(const Worker &me, float sum, int tile, int output, int row) {
    sum = sum * factor_of<Qkv>(me, tile, output) * me.shared.divisor[row];
    if (BIAS) sum += term_of<Qkv>(me, tile, output);
    return of_bf16(to_bf16(sum));
}

// How far a row turns a column.
struct Angle {
    float cosine, sine;
};

DEVICE Angle angle_of(const Worker &me, int column, int row) {
    const float *angle = me.args.angles + (long long)me.shared.position[row] * HEAD_DIM + column % (HEAD_DIM / 2);
    return Angle{angle[0], angle[HEAD_DIM / 2]};
}

// Turned, and into the output; of a key or value also into the cache.
DEVICE void finish_qkv(const Worker &me, float mine, Angle angle, int at, int output, int row) {
    const int head = at / HEAD_DIM, slot = me.shared.slot[row];
    const float other = from_lane_xor(mine, 8);
    if (head < HEADS + KV_HEADS) mine = mine * angle.cosine + (output < 8 ? -other : other) * angle.sine;
    const u16 bits = to_bf16(mine);
    me.args.qkv[row * QKV_DIM + at] = bits;
    if (head < HEADS || slot < 0) return;
    u16 *cache = head >= HEADS + KV_HEADS ? me.args.v_cache : me.args.k_cache;
    cache[((long long)slot * KV_HEADS + (head - HEADS) % KV_HEADS) * HEAD_DIM + at % HEAD_DIM] = bits;
}

// A tile leaves its squares for the head's norm and waits.
DEVICE void leave_square(const Worker &me, float mine, int tile, int output, int row) {
    float square = mine * mine;
#pragma unroll
    for (int mask = 8; mask > 0; mask /= 2) square += from_lane_xor(square, mask);
    if (output == 0) me.args.sums[tile * ROWS + row] = square;
}

// This program's tiles, when the squares of their whole heads are there.
DEVICE void finish_heads(Worker &me) {
    constexpr int TILES_EACH = HEAD_DIM / 16;
    const int first = first_tile<Qkv>(), count = end_tile<Qkv>() - first, output = me.thread % 16;
    sync_program();
    if (me.thread < count) {
        int *came = me.args.counters + HEAD_CAME + (first + me.thread) / TILES_EACH;
        add_and_tell(came, 1);
        while (see(came) < TILES_EACH) {}
    }
    sync_program();
    for (int tile = first; tile < first + count; ++tile) {
        const int at = output_of<Qkv>(tile, output), head = at / HEAD_DIM;
        const u16 *gains = head < HEADS ? me.args.q_gain : me.args.k_gain;
        const float gain = of_bf16(gains[at % HEAD_DIM]);
#pragma unroll
        for (int i = 0; i < ROWS_EACH; ++i) {
            const int row = row_of(me, i);
            const Angle angle = angle_of(me, at, row);
            float each[TILES_EACH], square = 0.0f, mine = me.shared.waiting[tile - first][i * THREADS + me.thread];
#pragma unroll
            for (int of = 0; of < TILES_EACH; ++of)
                each[of] = fresh_float(me.args.sums + (head * TILES_EACH + of) * ROWS + row);
#pragma unroll
            for (int of = 0; of < TILES_EACH; ++of) square += each[of];
            if (head < HEADS + KV_HEADS) mine = mine * inverse_root(square / HEAD_DIM + me.args.head_eps) * gain;
            finish_qkv(me, mine, angle, at, output, row);
        }
    }
}

// The squares that the linear before left, as many as a thread adds up: every 16th four of a row.
struct Squares {
    static constexpr int FOURS = DIM / 64, EACH = (FOURS + 15) / 16;
    float each[ROWS_EACH][EACH][4];

    DEVICE void read(const Worker &me) {
#pragma unroll
        for (int i = 0; i < ROWS_EACH; ++i)
#pragma unroll
            for (int at = 0; at < EACH; ++at) {
                const int four = at * 16 + me.thread % 16, row = row_of(me, i);
                fresh_floats(each[i][at], me.args.squares + row * (DIM / 16) + (four < FOURS ? four : 0) * 4);
            }
    }

    // The norm's divisor of each row, in place behind the next put_sums.
    DEVICE void add(Worker &me, float eps) {
#pragma unroll
        for (int i = 0; i < ROWS_EACH; ++i) {
            float sum = 0.0f;
#pragma unroll
            for (int at = 0; at < EACH; ++at)
#pragma unroll
                for (int j = 0; j < 4; ++j) sum += at * 16 + me.thread % 16 < FOURS ? each[i][at][j] : 0.0f;
#pragma unroll
            for (int mask = 8; mask > 0; mask /= 2) sum += from_lane_xor(sum, mask);
            if (me.thread % 16 == 0) me.shared.divisor[row_of(me, i)] = inverse_root(sum / DIM + eps);
        }
    }
};

// ---- attention's splits

// One warp a head of a row, the splits in their order. Where a split saw nothing it weighs nothing.
DEVICE void merge_head(const Worker &me, int at) {
    constexpr int EACH = HEAD_DIM / 32, STRIDE = ROWS * HEADS;
    const float top = fresh_float(me.args.top + me.lane % SPLITS * STRIDE + at);
    const float total = fresh_float(me.args.total + me.lane % SPLITS * STRIDE + at);
    float parts[SPLITS][EACH];
#pragma unroll
    for (int split = 0; split < SPLITS; ++split)
        fresh_floats(parts[split], me.args.acc + ((long long)split * STRIDE + at) * HEAD_DIM + me.lane * EACH);
    float best = top;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) best = maximum(best, from_lane_xor(best, mask));
    const float weight = power_of_two(top - (best == -INFINITY ? 0.0f : best));
    float sum = 0.0f, y[EACH] = {};
#pragma unroll
    for (int split = 0; split < SPLITS; ++split) {
        const float mine = from_lane(weight, split);
        sum += mine * from_lane(total, split);
#pragma unroll
        for (int i = 0; i < EACH; ++i) y[i] += mine * parts[split][i];
    }
    const float shrink = 1.0f / (sum > 0.0f ? sum : 1.0f);
#pragma unroll
    for (int i = 0; i < EACH; ++i) me.args.attended[at * HEAD_DIM + me.lane * EACH + i] = narrow(y[i] * shrink);
}

DEVICE void merge(Worker &me) {
    for (int at = program_index() + me.warp * PROGRAMS; at < ROWS * HEADS; at += PROGRAMS * WARPS) merge_head(me, at);
    copies_done();
    tell(me, me.args.counters + MERGED);
    wait_for(me, me.args.counters + MERGED, PROGRAMS);
}

// ---- the two kinds of linears

// A number behind a norm's linear, its sum complete; `i` counts the thread's rows.
template <class L> DEVICE void finish_wide(const Worker &me, float sum, Angle angle, int tile, int output, int i) {
    const int row = row_of(me, i);
    if constexpr (L::KIND == GATE_UP) {
        finish_gate(me, sum, tile, output, row);
    } else {
        const float mine = raw_qkv(me, sum, tile, output, row);
        if constexpr (HEAD_NORM) {
            me.shared.waiting[tile - first_tile<L>()][i * THREADS + me.thread] = mine;
            leave_square(me, mine, tile, output, row);
        } else {
            finish_qkv(me, mine, angle, output_of<L>(tile, output), output, row);
        }
    }
}

// Behind a norm, many tiles: the input stays in registers, a range after the other.
template <class L> DEVICE void work_wide(Worker &me, const u16 *input, float eps) {
    const int first = first_tile<L>(), end = end_tile<L>(), output = me.thread % 16;
    Squares squares;
    squares.read(me);
#pragma unroll 1
    for (int range = 0; range < L::RANGES; ++range) {
        uint4 x[L::BLOCKS][ROW_TILES];
        read_range<L>(x, me, input, range);
        if (range == 0) squares.add(me, eps);
        if (first < end) multiply_low<L>(me, x);
#pragma unroll 1
        for (int tile = first; tile < end; ++tile) {
            Angle angles[ROWS_EACH] = {};
            if constexpr (L::KIND == QKV && !HEAD_NORM)
#pragma unroll
                for (int i = 0; i < ROWS_EACH; ++i)
                    angles[i] = angle_of(me, output_of<L>(tile, output), row_of(me, i));
            const float *sums = multiply_tile<L>(me, x, tile);
#pragma unroll
            for (int i = 0; i < ROWS_EACH; ++i) {
                const int row = row_of(me, i);
                float sum = add_warps(sums, output, row);
                if constexpr (L::RANGES > 1) {
                    float &waiting = me.shared.waiting[tile - first][i * THREADS + me.thread];
                    if (range > 0) sum = waiting + sum;
                    waiting = sum;
                }
                if (range == L::RANGES - 1) finish_wide<L>(me, sum, angles[i], tile, output, i);
            }
        }
    }
    if constexpr (L::KIND == QKV && HEAD_NORM) finish_heads(me);
    if constexpr (L::KIND == GATE_UP) tell(me, me.args.counters + DONE + L::KIND);
}

// A number onto the residual stream, rounded before it is added and again after, as the plain network does; and what the
// next norm will want of it.
template <class L> DEVICE void finish_add(const Worker &me, float sum, u16 before, int tile, int output, int row) {
    const int at = row * DIM + tile * 16 + output;
    const u16 bits = to_bf16(of_bf16(to_bf16(sum * factor_of<L>(me, tile, output))) + of_bf16(before));
    const float value = of_bf16(bits);
    me.args.stream[at] = bits;
    me.args.scaled[at] = narrow(value * term_of<L>(me, tile, output));
    float square = value * value;
#pragma unroll
    for (int mask = 8; mask > 0; mask /= 2) square += from_lane_xor(square, mask);
    if (output == 0) me.args.squares[row * (DIM / 16) + tile] = square;
}

// A program's share of a set's tiles, when the sums of all ranges are there.
template <class L> DEVICE void finish_share(Worker &me, int range) {
    const int output = me.thread % 16;
    for (int tile = first_tile<L>() + range; tile < end_tile<L>(); tile += L::RANGES) {
#pragma unroll
        for (int i = 0; i < ROWS_EACH; ++i) {
            const int row = row_of(me, i);
            const float *from = me.args.sums + ((long long)tile * L::RANGES * ROWS + row) * 16 + output;
            const u16 before = fresh_half(me.args.stream + row * DIM + tile * 16 + output);
            float each[L::RANGES], sum = 0.0f;
#pragma unroll
            for (int other = 0; other < L::RANGES; ++other) each[other] = fresh_float(from + other * (16 * ROWS));
#pragma unroll
            for (int other = 0; other < L::RANGES; ++other) sum += each[other];
            finish_add<L>(me, sum, before, tile, output, row);
        }
    }
}

// Onto the residual stream: one range of a set's tiles.
template <class L> DEVICE void work_tall(Worker &me, const u16 *input) {
    const int range = share_of<L>() / L::SETS, output = me.thread % 16;
    if (range >= L::RANGES) return;
    uint4 x[L::BLOCKS][ROW_TILES];
    read_range<L>(x, me, input, range);
    if (first_tile<L>() < end_tile<L>()) multiply_low<L>(me, x);
#pragma unroll 1
    for (int tile = first_tile<L>(); tile < end_tile<L>(); ++tile) {
        u16 before[ROWS_EACH] = {};
        if constexpr (L::RANGES == 1)
#pragma unroll
            for (int i = 0; i < ROWS_EACH; ++i)
                before[i] = fresh_half(me.args.stream + row_of(me, i) * DIM + tile * 16 + output);
        const float *sums = multiply_tile<L>(me, x, tile);
#pragma unroll
        for (int i = 0; i < ROWS_EACH; ++i) {
            const int row = row_of(me, i);
            const float sum = add_warps(sums, output, row);
            if constexpr (L::RANGES == 1) finish_add<L>(me, sum, before[i], tile, output, row);
            else me.args.sums[(((long long)tile * L::RANGES + range) * ROWS + row) * 16 + output] = sum;
        }
    }
    if constexpr (L::RANGES > 1) {
        int *came = me.args.counters + SET_CAME + (L::KIND == O ? 0 : PROGRAMS) + share_of<L>() % L::SETS;
        tell(me, came);
        wait_for(me, came, L::RANGES);
        finish_share<L>(me, range);
    }
    tell(me, me.args.counters + DONE + L::KIND);
}

KERNEL between(const GRID_CONSTANT Between args) {
    Shared &shared = *(Shared *)shared_memory();
    const int thread = thread_index();
    const Cursor nowhere{nullptr, nullptr, -1, 0, 0, 0, 0, 0, 0};
    Worker me{args, shared, thread, thread / 32, thread % 32, read_once(), nowhere, 0, 0, 0};
    if (multiplies(me)) {
        if (me.lane == 0) {
            for (int slot = 0; slot < RING; ++slot) barrier_make(&shared.full[me.warp][slot], 1);
            barriers_made();
        }
        sync_warp();
        open_next(me);
    }
    for (int slot = 0; slot < RING; ++slot) ask(me, slot);
    ask_constants(me);
    wait_turn();
    ask_places(me);
    if (args.has_layer) {
        merge(me);
        work_tall<Output>(me, args.attended);
        wait_for(me, args.counters + DONE + O, Output::SETS * Output::RANGES);
        work_wide<GateUp>(me, args.scaled, args.ffn_eps);
        wait_for(me, args.counters + DONE + GATE_UP, PROGRAMS);
        work_tall<Down>(me, args.ffn);
        if (args.has_qkv) wait_for(me, args.counters + DONE + DOWN, Down::SETS * Down::RANGES);
    } else {
        copies_done();
        sync_program();
    }
    let_next();
    if (args.has_qkv) work_wide<Qkv>(me, args.scaled, args.next_eps);
}
