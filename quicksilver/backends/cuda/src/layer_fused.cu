// A layer from one attention to the next in one launch: the merge of attention's splits, output, gate and up, down, and
// the next layer's qkv, for up to 32 rows. A program a multiprocessor stays on the chip through all of it.
//
// A linear's outputs go in tiles, its depth in ranges as long as the registers hold of an input. The multiplying warps of
// a program take equal parts of a range; their sums are added in the order of the warps, those of ranges in theirs. So a
// row's numbers depend neither on the rows beside it nor on their number.
//
// Every program that multiplies a range reads all of its input, and at 32 rows inputs are a third of all that is read.
// So two programs that see each other's shared memory form a team: a team has an equal share of the tiles, each of the
// two half of the depth, and each finishes half of every tile with the sums that the other sends. A depth in more ranges
// goes the same way over sets of programs, which leave their sums in memory.
//
// What programs make for each other they look at themselves: it replaces numbers that cannot be, and who still finds one
// reads again. So nobody waits until a store has been answered, nor for programs whose numbers are not for him. Counters
// remain for what is used a second time: the residual stream, and room in shared memory.
//
// Warps have three kinds of work, and wait for each other at counted barriers only. One brings weights, in pieces through
// a ring of slots in shared memory, through all four linears: while programs wait for an input that the whole chip makes,
// the weights that will meet it are on their way. They lie in memory as lanes read them (between.py). Six or eight
// multiply, with the input in registers, and four finish what those leave: add up, exchange, and what follows a linear.
//
// Canvas rows wear an adapter, W x + B A x. A has so few outputs that every program multiplies all of it with its range
// of x, as tiles before its own; B is a little more depth for one of the warps.
//
// The shape comes from the compiler's command line: PROGRAMS, MULTIPLIERS (warps that multiply), ROWS, DIM, FFN, HEADS,
// KV_HEADS, HEAD_DIM, RANK (of the canvas adapter, or 0), SPLITS and ATTENDED (of attention: its splits, and its rows, of
// which these are some), HEAD_NORM, BIAS, BITS (of a weight), SLOTS, PIECE (blocks of a warp in a slot), TEAM (programs of
// one, 1 or 2), and each linear's ranges (O_RANGES ...).
#include "device.cuh"

// Warps by their work, in groups of four, which share the registers out. The last group's other three ask for what will be
// wanted from memory.
constexpr int FINISHERS = 4, FIRST_FINISHER = 8, BRINGER = FIRST_FINISHER + FINISHERS, THREADS = 32 * (BRINGER + 4);
constexpr int MULTIPLYING = 200, FINISHING = 88, BRINGING = 24;  // registers a thread
static_assert(8 * MULTIPLYING + 4 * FINISHING + 4 * BRINGING <= 65536 / 32, "registers");
constexpr int MERGING = BRINGER;                       // warps, before all that
constexpr int FIRST_ASKER = BRINGER + 1, ASKERS = 3;
constexpr int MOST_ASKED = 4096;                       // keys

constexpr int BLOCK = 32;                              // of the depth, that a warp reads at once
constexpr int KEY_BLOCK = 64;                          // of attention, whose splits take blocks in turn
constexpr int TEAMS = PROGRAMS / TEAM, TILE = 16 * TEAM;  // outputs of a tile, 16 for each program of a team to finish

// How weights of so many bits lie: what a lane reads of 16 outputs over a block, what those take, a block of one warp and
// of every warp, and how many blocks of every warp a slot of the ring holds.
DEVICE constexpr int part_bytes(int bits) { return bits == 4 ? 320 : 64 * bits; }
template <int bits> struct Lie {
    static constexpr int LANE = bits == 4 ? 8 : 16, PART = part_bytes(bits);
    static constexpr int BLOCK = TEAM * PART, ROUND = MULTIPLIERS * BLOCK;
    static constexpr int PIECE_BLOCKS = PIECE * part_bytes(BITS) / PART;
    static_assert(PIECE_BLOCKS > 0, "a slot holds a block");
};
constexpr int A_BITS = RANK > 0 ? 16 : BITS;  // of the adapter's first half

constexpr int ROW_TILES = ROWS / 8;
constexpr int EACH = 16 * ROWS / (32 * FINISHERS), MATES = 16 / EACH;  // a finisher's numbers, who share a row of a part
constexpr int SUM_STRIDE = 20;                         // floats between rows of a part's sums: no bank twice
constexpr int PART_SUMS = ROWS * SUM_STRIDE, WARP_SUMS = TEAM * PART_SUMS;
constexpr int QKV_HEADS = HEADS + 2 * KV_HEADS, Q_DIM = HEADS * HEAD_DIM, QKV_DIM = QKV_HEADS * HEAD_DIM;
constexpr int RANK_TILES = (RANK + TILE - 1) / TILE, RANK_BLOCKS = (RANK + BLOCK - 1) / BLOCK;
constexpr int RANK_DEPTH = RANK_BLOCKS * BLOCK;
constexpr bool IS_SHRUNK = BITS < 16;                  // inputs beside weights in few bits are fp16
constexpr float SHRINK = IS_SHRUNK ? 1.0f / 64 : 1.0f;

enum { O, GATE_UP, DOWN, QKV, NUM_LINEARS };

template <int kind, int depth, int outputs, int ranges> struct Linear {
    static constexpr int KIND = kind, DEPTH = depth, TILES = outputs / TILE, RANGES = ranges;
    static constexpr bool IS_WIDE = kind == GATE_UP || kind == QKV;   // behind a norm, many tiles
    static constexpr bool IN_SETS = !IS_WIDE && ranges > TEAM;
    static constexpr int SETS = IN_SETS ? PROGRAMS / ranges : TEAMS;  // that share the tiles
    static constexpr int RANGES_EACH = IN_SETS ? 1 : ranges / TEAM;   // of a program
    static constexpr int MOST_TILES = (TILES + SETS - 1) / SETS;      // of a set or team
    static constexpr int RANGE = depth / ranges, BLOCKS = RANGE / (MULTIPLIERS * BLOCK);
    static constexpr int WORKERS = IN_SETS ? SETS * ranges : TEAMS * TEAM;  // programs that have a part in it
    static_assert(RANGE % (MULTIPLIERS * BLOCK) == 0 && outputs % TILE == 0, "shape");
    static_assert(IN_SETS || ranges % TEAM == 0, "a team shares the ranges");
};

typedef Linear<O, Q_DIM, DIM, O_RANGES> Output;
typedef Linear<GATE_UP, DIM, 2 * FFN, GATE_UP_RANGES> GateUp;
typedef Linear<DOWN, FFN, DIM, DOWN_RANGES> Down;
typedef Linear<QKV, DIM, QKV_DIM, QKV_RANGES> Qkv;

DEVICE constexpr int larger(int a, int b) { return a > b ? a : b; }
// Of teams, whose sums wait in shared memory: for those of the other program or of further ranges, or for all of a head.
constexpr int SENT_TILES = TEAM == 1 ? 1 : larger(larger(Output::IN_SETS ? 1 : Output::MOST_TILES, GateUp::MOST_TILES),
                                                  larger(Down::IN_SETS ? 1 : Down::MOST_TILES, Qkv::MOST_TILES));
constexpr int KEPT_TILES = larger(
    larger(GateUp::RANGES_EACH > 1 ? GateUp::MOST_TILES : 1, Output::RANGES_EACH > 1 ? Output::MOST_TILES : 1),
    larger(Down::RANGES_EACH > 1 ? Down::MOST_TILES : 1, Qkv::RANGES_EACH > 1 || HEAD_NORM ? Qkv::MOST_TILES : 1));

constexpr int OWN_TILES = Output::MOST_TILES + GateUp::MOST_TILES + Down::MOST_TILES + Qkv::MOST_TILES;
constexpr int MOST_OUTPUTS =
    TILE * larger(larger(Output::MOST_TILES, GateUp::MOST_TILES), larger(Down::MOST_TILES, Qkv::MOST_TILES));

struct Weights {
    const u8 *w;         // packed
    const float *scale;  // of each output, with few bits
    const u8 *a, *b;     // the canvas adapter in 16 bits, packed: A like the weights, B by tiles and over `scale`
};

struct Between {
    Weights weights[NUM_LINEARS];
    const float *acc, *top, *total;  // attention's splits: (SPLITS, ATTENDED, HEADS, HEAD_DIM), without the last
    // Handed from program to program, unset before. Inputs of linears lie in the order of `input_at`.
    u16 *attended;        // (Q_DIM / 32, ROWS, 32): the splits merged
    u16 *middle;          // the stream behind attention times the gain of ffn's norm
    u16 *ffn;
    u16 *scaled;          // the stream behind ffn times the next norm's gain; by rows before the first layer
    float *middle_squares, *squares;  // (ROWS, DIM / 16): of the stream there, by part
    float *head_squares;  // (QKV_HEADS, ROWS, HEAD_PARTS)
    float *sums;          // (parts, ranges, ROWS, 16), where programs of a set wait for each other; unset again once read
    u8 *stale;            // what the next launch will be handed, for this one to unset
    u16 *stream;          // (ROWS, DIM), the residual stream, bf16
    u16 *qkv;             // (ROWS, QKV_DIM), bf16: the output
    const u16 *ffn_gain, *next_gain, *bias, *q_gain, *k_gain;
    u16 *k_cache, *v_cache;
    const float *angles;  // (positions, 2, HEAD_DIM / 2)
    const int *positions, *slots, *gate;
    const int *prefix_end, *span_start, *span_end;  // what rows see: cached keys, rows of this forward
    const int *tiles, *pages;  // of attention: (num_tiles, 3) segment, first row, end row; (segments, max_pages)
    int *counters;        // zero before the launch
    float ffn_eps, next_eps, head_eps;
    int has_layer, has_qkv;  // what this launch is to do: three linears behind attention, the next qkv
    int stale_bytes, num_tiles, max_pages, page_size;
};

constexpr int NUM_COUNTERS = NUM_LINEARS;  // of programs that have finished a linear

struct Shared {
    u8 ring[SLOTS][PIECE * Lie<BITS>::ROUND];
    float sums[MULTIPLIERS][WARP_SUMS];
    float kept[KEPT_TILES][TEAM][16 * ROWS];  // by thread
    float sent[SENT_TILES][16 * ROWS];        // by the other program
    alignas(16) float scale[IS_SHRUNK ? NUM_LINEARS : 1][MOST_OUTPUTS];  // of own outputs
    alignas(16) u16 term[NUM_LINEARS][MOST_OUTPUTS];               // their gains or biases, bf16
    alignas(16) u16 low[ROWS][larger(RANK_DEPTH, 8)];              // A x of canvas rows
    alignas(16) u8 b[larger(OWN_TILES * TEAM * RANK_BLOCKS * 1024, 16)];  // B of own tiles, linear by linear
    u64 full[SLOTS], used[SLOTS];        // a piece has come, all warps have multiplied it
    u64 summed, left;                    // all warps have put their sums, the finishers have read them
    u64 lowered;                         // `low` is there
    u64 known, settled;                  // what outputs are finished with is there, and the stream behind output
    u64 came[NUM_LINEARS][SENT_TILES];   // what the other program sends
};

// A warp's view; `thread` counts those of the same work, `turn` the sums that it has put or seen.
struct Worker {
    const Between &args;
    Shared &shared;
    const int thread, warp, lane;
    u32 turn, lows;
    int used;  // pieces of weights
};

// Which of its team a program is.
DEVICE int member() { return TEAM == 1 ? 0 : program_index() % TEAM; }

// A program's place among the shares of a linear, elsewhere for every linear, so that nobody always has the larger ones.
template <class L> DEVICE int share_of() {
    if (L::IN_SETS) return (program_index() + L::KIND * (PROGRAMS / NUM_LINEARS)) % PROGRAMS;
    return (program_index() / TEAM + L::KIND * (TEAMS / NUM_LINEARS)) % TEAMS;
}
template <class L> DEVICE int first_tile() { return share_of<L>() % L::SETS * L::TILES / L::SETS; }
template <class L> DEVICE int end_tile() { return (share_of<L>() % L::SETS + 1) * L::TILES / L::SETS; }
template <class L> DEVICE int num_tiles() { return end_tile<L>() - first_tile<L>(); }
template <class L> DEVICE int first_range() {
    return L::IN_SETS ? share_of<L>() / L::SETS : member() * L::RANGES_EACH;
}

DEVICE void sync_multipliers() { sync_some(1, MULTIPLIERS * 32); }
DEVICE void sync_finishers() { sync_some(2, FINISHERS * 32); }
DEVICE void sync_mergers() { sync_some(3, MERGING * 32); }

// ---- weights on their way

// A slice's pieces, each into the next slot when all warps have used what was in it.
template <class L, int bits> DEVICE void bring_slice(Worker &me, const u8 *weights, int slice, u64 policy) {
    constexpr int ROUND = Lie<bits>::ROUND, MOST = Lie<bits>::PIECE_BLOCKS;
    const u8 *from = weights + (long long)slice * (L::BLOCKS * ROUND);
#pragma unroll 1
    for (int begin = 0; begin < L::BLOCKS; begin += MOST, ++me.used) {
        const int slot = me.used % SLOTS, bytes = (L::BLOCKS - begin < MOST ? L::BLOCKS - begin : MOST) * ROUND;
        if (me.used >= SLOTS) barrier_wait(&me.shared.used[slot], (me.used / SLOTS - 1) % 2);
        copy_bytes(me.shared.ring[slot], from + begin * ROUND, bytes, &me.shared.full[slot], policy);
    }
}

// Of each range A's tiles before W's.
template <class L> DEVICE void bring_linear(Worker &me, u64 policy) {
    const Weights &weights = me.args.weights[L::KIND];
    if (first_range<L>() >= L::RANGES || num_tiles<L>() == 0) return;
#pragma unroll 1
    for (int range = first_range<L>(); range < first_range<L>() + L::RANGES_EACH; ++range) {
#pragma unroll 1
        for (int tile = 0; tile < RANK_TILES; ++tile)
            bring_slice<L, A_BITS>(me, weights.a, range * RANK_TILES + tile, policy);
#pragma unroll 1
        for (int tile = first_tile<L>(); tile < end_tile<L>(); ++tile)
            bring_slice<L, BITS>(me, weights.w, range * L::TILES + tile, policy);
    }
}

DEVICE void bring(Worker &me) {
    const u64 policy = read_once();
    if (me.args.has_layer) {
        bring_linear<Output>(me, policy);
        bring_linear<GateUp>(me, policy);
        bring_linear<Down>(me, policy);
    }
    if (me.args.has_qkv) bring_linear<Qkv>(me, policy);
}

// Whether a layer's keys and values are so many that they are gone from the second-level cache when their turn comes.
constexpr int KEY_DIM = KV_HEADS * HEAD_DIM;
constexpr bool IS_FAR = KEY_DIM >= 512;

// Have keys and values that the attention behind this launch will read brought back: of every segment, as many as do not
// crowd out anything.
DEVICE void ask_keys(const Between &args, int thread) {
    constexpr int LINES = KEY_DIM / 64;
    int room = MOST_ASKED * LINES, before = -1;
#pragma unroll 1
    for (int tile = 0; tile < args.num_tiles; ++tile) {
        const int segment = args.tiles[3 * tile], end = args.tiles[3 * tile + 2];
        if (args.tiles[3 * tile + 1] >= end) break;
        if (segment == before) continue;
        before = segment;
        const int count = args.prefix_end[end - 1] * LINES, asked = count < room ? count : room;
        room -= asked;
#pragma unroll 1
        for (int at = program_index() * ASKERS * 32 + thread; at < asked; at += PROGRAMS * ASKERS * 32) {
            const int key = at / LINES, page = args.pages[segment * args.max_pages + key / args.page_size];
            if (page < 0) continue;  // of rows that fork
            const long long place = ((long long)page * args.page_size + key % args.page_size) * KEY_DIM + at % LINES * 64;
            ask_line(args.k_cache + place);
            ask_line(args.v_cache + place);
        }
    }
}

// The output that a number of a part belongs to, 16 outputs of a tile. Of gate and up a part has eight each; of qkv eight
// columns of a head, and their partners in the other half.
template <class L> DEVICE int output_of(int part, int at) {
    if (L::KIND == GATE_UP) return part * 8 + at % 8 + (at < 8 ? 0 : FFN);
    if (L::KIND != QKV) return part * 16 + at;
    return part / (HEAD_DIM / 16) * HEAD_DIM + part % (HEAD_DIM / 16) * 8 + at % 8 + (at < 8 ? 0 : HEAD_DIM / 2);
}
template <class L> DEVICE int first_part() { return first_tile<L>() * TEAM; }
template <class L> DEVICE int end_part() { return end_tile<L>() * TEAM; }

// Where a linear's B begins in shared memory.
template <class L> DEVICE constexpr int b_begin() {
    const int behind_output = L::KIND > O ? Output::MOST_TILES : 0;
    const int behind_gates = L::KIND > GATE_UP ? GateUp::MOST_TILES : 0;
    return TEAM * RANK_BLOCKS * 1024 * (behind_output + behind_gates + (L::KIND > DOWN ? Down::MOST_TILES : 0));
}

// Have what outputs will be finished with brought into shared memory: in eights, and B.
template <class L> DEVICE void ask_own(const Worker &me, const u16 *terms) {
    const Weights &weights = me.args.weights[L::KIND];
    const int first = first_part<L>(), end = end_part<L>();
#pragma unroll 1
    for (int at = me.thread; at < (end - first) * 2; at += ASKERS * 32) {
        const int output = output_of<L>(first + at / 2, at % 2 * 8);
        if (terms) copy_16(me.shared.term[L::KIND] + at * 8, terms + output);
        if (IS_SHRUNK) {
            copy_16(me.shared.scale[L::KIND] + at * 8, weights.scale + output);
            copy_16(me.shared.scale[L::KIND] + at * 8 + 4, weights.scale + output + 4);
        }
    }
    if (RANK > 0)
#pragma unroll 4
        for (int at = me.thread * 16; at < (end - first) * (RANK_BLOCKS * 1024); at += ASKERS * 32 * 16)
            copy_16(me.shared.b + b_begin<L>() + at, weights.b + first * (RANK_BLOCKS * 1024) + at);
}

// While others merge; who finishes waits for `known`.
DEVICE void ask_constants(const Worker &me) {
    if (me.args.has_layer) {
        ask_own<Output>(me, me.args.ffn_gain);
        ask_own<GateUp>(me, nullptr);
        ask_own<Down>(me, me.args.next_gain);
    }
    if (me.args.has_qkv) ask_own<Qkv>(me, BIAS ? me.args.bias : nullptr);
    // Behind the ranks B is zero, but zero times what is no number is none.
    for (int at = me.thread; at < ROWS * (RANK_DEPTH - RANK); at += ASKERS * 32)
        me.shared.low[at % ROWS][RANK + at / ROWS] = 0;
    copies_done();
    sync_warp();
    if (me.lane == 0) barrier_arrive(&me.shared.known);
}

// What a sum is multiplied by, and an output's gain or bias.
template <class L> DEVICE float factor_of(const Worker &me, int part, int output) {
    return IS_SHRUNK ? me.shared.scale[L::KIND][(part - first_part<L>()) * 16 + output] / SHRINK : 1.0f;
}
template <class L> DEVICE float term_of(const Worker &me, int part, int output) {
    return of_bf16(me.shared.term[L::KIND][(part - first_part<L>()) * 16 + output]);
}

// A number that is small enough already, and one as the next linear wants it.
DEVICE u16 round_16(float value) {
    if (!IS_SHRUNK) return to_bf16(value);
    return to_fp16(value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value);
}
DEVICE u16 narrow(float value) { return round_16(value * SHRINK); }

// Where a linear's input has number `at` of a row: in the order in which lanes read it, 16 bytes each.
DEVICE int input_at(int row, int at) {
    return (at / BLOCK * ROW_TILES + row / 8) * 256 + (row % 8 * 4 + at % BLOCK / 8) * 8 + at % 8;
}

// ---- attention's splits

// What a row sees: cached keys, and whether rows of this forward, which the last split has. Others leave nothing.
struct Seen {
    int num_keys;
    bool has_span;
};

DEVICE Seen seen_by(const Between &args, int row) {
    return Seen{args.prefix_end[row], args.span_end[row] > args.span_start[row]};
}
DEVICE bool is_kept(int split, const Seen &seen) {
    return split * KEY_BLOCK < seen.num_keys || (split == SPLITS - 1 && seen.has_span);
}

// One warp a head of a row, the splits in their order. Where a split saw nothing it weighs nothing.
DEVICE void merge_head(const Worker &me, int at, const Seen &seen) {
    constexpr int EACH = HEAD_DIM / 32, STRIDE = ATTENDED * HEADS;
    const int mine = me.lane % SPLITS;
    float top = -INFINITY, total = 0.0f, parts[SPLITS][EACH] = {};
    if (is_kept(mine, seen)) {
        top = fresh_float(me.args.top + mine * STRIDE + at);
        total = fresh_float(me.args.total + mine * STRIDE + at);
    }
#pragma unroll
    for (int split = 0; split < SPLITS; ++split)
        if (is_kept(split, seen))
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
    u16 bits[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) bits[i] = narrow(y[i] * shrink);
    hand(me.args.attended + input_at(at / HEADS, at % HEADS * HEAD_DIM + me.lane * EACH), bits);
}

// The row tables are older than the launch before this one.
DEVICE void merge(const Worker &me) {
    int at = program_index() + me.warp * PROGRAMS;
    Seen seen = seen_by(me.args, at / HEADS % ROWS);
    wait_turn();
    for (; at < ROWS * HEADS; at += PROGRAMS * MERGING) {
        merge_head(me, at, seen);
        seen = seen_by(me.args, (at + PROGRAMS * MERGING) / HEADS % ROWS);
    }
}

// ---- products

DEVICE void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    if (IS_SHRUNK) multiply_fp16(c, a0, a1, a2, a3, b0, b1);
    else multiply_bf16(c, a0, a1, a2, a3, b0, b1);
}

// Until blocks of an input are there, as far as a few of their numbers say: of every eight columns, in rows 16 apart, which
// is something from nearly everybody who makes them. A lane that has seen its own asks no more.
template <int blocks> DEVICE void await_input(const Worker &me, const u16 *input, int begin) {
    const u16 *from = input + input_at(me.lane % 16, begin * BLOCK + me.lane % (blocks * 4) * 8);
    u32 seen[ROWS / 16], most;
#pragma unroll
    for (int i = 0; i < ROWS / 16; ++i) seen[i] = UNSET;
    do {
        most = 0;
#pragma unroll
        for (int i = 0; i < ROWS / 16; ++i) {
            if (seen[i] == UNSET) seen[i] = handed_4(from + i * 512);
            most = larger_word(most, seen[i]);
        }
    } while (is_any(most == UNSET));
}

// Blocks of an input from the `begin`-th on: a lane has eight numbers in a row of every block and of each of its rows.
// Which of them meet in a product is the packing's business. Nearly always all of it is there by then.
template <int blocks>
DEVICE void read_input(uint4 (&x)[blocks][ROW_TILES], const Worker &me, const u16 *input, int begin) {
    const u16 *from = input + begin * (ROWS * BLOCK) + me.lane * 8;
    u32 most;
    await_input<blocks>(me, input, begin);
    do {
        most = 0;
#pragma unroll
        for (int at = 0; at < blocks * ROW_TILES; ++at) x[at / ROW_TILES][at % ROW_TILES] = handed_16(from + at * 256);
#pragma unroll
        for (int at = 0; at < blocks * ROW_TILES; ++at) {
            const uint4 &four = x[at / ROW_TILES][at % ROW_TILES];
            most = larger_word(most, larger_word(larger_word(four.x, four.y), larger_word(four.z, four.w)));
        }
    } while (is_any(most == UNSET));
}

// The same where rows lie behind each other.
template <int blocks>
DEVICE void read_rows(uint4 (&x)[blocks][ROW_TILES], const Worker &me, const u16 *input, int depth, int begin) {
    const u16 *from = input + me.lane / 4 * depth + begin * BLOCK + me.lane % 4 * 8;
#pragma unroll
    for (int block = 0; block < blocks; ++block)
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile) x[block][tile] = fresh_16(from + tile * 8 * depth + block * BLOCK);
}

// 16 outputs over a block: `low` has the first eight, `high` the others, eight weights a lane each.
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

// Eight weights of four bits, each other one in the upper half; `group` has their step and their least value. Four bits
// low in a half are a number of fp16 as they stand, n times a power of two, and steps are kept times its inverse.
DEVICE uint4 widen_fours(u32 eight, u32 group) {
    u32 step, least;
    spread(group, step, least);
    const u32 later = eight >> 8;
    const u32 further = multiply_add(step, 0x2c002c00, 0);  // a sixteenth, for bits four further up
    uint4 wide;
    wide.x = multiply_add(eight & 0x000f000f, step, least), wide.y = multiply_add(eight & 0x00f000f0, further, least);
    wide.z = multiply_add(later & 0x000f000f, step, least), wide.w = multiply_add(later & 0x00f000f0, further, least);
    return wide;
}

// A lane's weights of a part, from `at` on: of its output among the first eight, and of the one eight further on. Behind
// weights of four bits stand the steps and least values of the 16 outputs over this block.
template <int bits> DEVICE void read_part(uint4 &low, uint4 &high, const u8 *at, int lane) {
    if constexpr (bits == 4) {
        const uint2 eights = shared_8(at), groups = shared_8(at + (32 - lane + lane / 4) * Lie<4>::LANE);
        low = widen_fours(eights.x, groups.x), high = widen_fours(eights.y, groups.y);
    } else {
        const uint4 first = shared_16(at);
        low = bits == 8 ? widen_8(first.x, first.y) : first;
        high = bits == 8 ? widen_8(first.z, first.w) : shared_16(at + Lie<bits>::PART / 2);
    }
}

// A warp's sums: of the parts of a tile, or of one part twice, block by block in turn, because a product waits for the
// one before it.
typedef float Sums[2][ROW_TILES][4];

// A piece from the ring times the input from block `begin` on.
template <class L, int bits, int begin>
DEVICE void multiply_piece(Sums &acc, Worker &me, const uint4 (&x)[L::BLOCKS][ROW_TILES]) {
    constexpr int MOST = Lie<bits>::PIECE_BLOCKS, count = L::BLOCKS - begin < MOST ? L::BLOCKS - begin : MOST;
    const int slot = me.used % SLOTS;
    barrier_wait(&me.shared.full[slot], me.used / SLOTS % 2);
    const u8 *from = me.shared.ring[slot] + me.warp * Lie<bits>::BLOCK + me.lane * Lie<bits>::LANE;
#pragma unroll
    for (int block = 0; block < count; ++block, from += Lie<bits>::ROUND)
#pragma unroll
        for (int part = 0; part < TEAM; ++part) {
            uint4 low, high;
            read_part<bits>(low, high, from + part * Lie<bits>::PART, me.lane);
            multiply_block(acc[TEAM == 1 ? block % 2 : part], low, high, x[begin + block]);
        }
    sync_warp();
    if (me.lane == 0) barrier_arrive(&me.shared.used[slot]);
    ++me.used;
    if constexpr (begin + MOST < L::BLOCKS) multiply_piece<L, bits, begin + MOST>(acc, me, x);
}

// A slice times the input.
template <class L, int bits>
DEVICE void multiply_slice(Sums &acc, Worker &me, const uint4 (&x)[L::BLOCKS][ROW_TILES]) {
    multiply_piece<L, bits, 0>(acc, me, x);
#pragma unroll
    for (int tile = 0; tile < ROW_TILES && TEAM == 1; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[0][tile][i] += acc[1][tile][i];
}

// The warps' sums side by side in shared memory, when the finishers have left what was there.
DEVICE void put_sums(Worker &me, const Sums &acc) {
    if (me.turn > 0) barrier_wait(&me.shared.left, (me.turn - 1) % 2);
    ++me.turn;
    float *mine = me.shared.sums[me.warp] + me.lane / 4;
#pragma unroll
    for (int part = 0; part < TEAM; ++part)
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile) {
            float *at = mine + part * PART_SUMS + (tile * 8 + me.lane % 4 * 2) * SUM_STRIDE;
            at[0] = acc[part][tile][0], at[SUM_STRIDE] = acc[part][tile][1];
            at[8] = acc[part][tile][2], at[SUM_STRIDE + 8] = acc[part][tile][3];
        }
    sync_warp();
    if (me.lane == 0) barrier_arrive(&me.shared.summed);
}

// B's term of own tile `at`.
template <class L> DEVICE void add_term(Sums &acc, const Worker &me, int at) {
    const u8 *b = me.shared.b + b_begin<L>() + at * (TEAM * RANK_BLOCKS * 1024) + me.lane * 16;
#pragma unroll
    for (int block = 0; block < RANK_BLOCKS; ++block) {
        uint4 low[ROW_TILES];
#pragma unroll
        for (int at = 0; at < ROW_TILES; ++at)
            low[at] = shared_16((const u8 *)&me.shared.low[at * 8 + me.lane / 4][block * BLOCK + me.lane % 4 * 8]);
#pragma unroll
        for (int part = 0; part < TEAM; ++part) {
            const u8 *from = b + (part * RANK_BLOCKS + block) * 1024;
            multiply_block(acc[part], shared_16(from), shared_16(from + 512), low);
        }
    }
}

template <class L> DEVICE void multiply_tile(Worker &me, const uint4 (&x)[L::BLOCKS][ROW_TILES], int tile) {
    Sums acc = {};
    if (A_BITS != BITS && tile < 0) multiply_slice<L, A_BITS>(acc, me, x);
    else multiply_slice<L, BITS>(acc, me, x);
    if (RANK > 0 && tile >= 0 && me.warp == MULTIPLIERS - 1) {
        if (tile == 0) barrier_wait(&me.shared.lowered, me.lows++ % 2);
        add_term<L>(acc, me, tile);
    }
    put_sums(me, acc);
}

// The input stays in registers, a range after the other.
template <class L> DEVICE void multiply_ranges(Worker &me, const u16 *input) {
    if (first_range<L>() >= L::RANGES || num_tiles<L>() == 0) return;
#pragma unroll 1
    for (int range = first_range<L>(); range < first_range<L>() + L::RANGES_EACH; ++range) {
        uint4 x[L::BLOCKS][ROW_TILES];
        const int begin = (range * MULTIPLIERS + me.warp) * L::BLOCKS;
        if (L::KIND == QKV && !me.args.has_layer) read_rows(x, me, input, L::DEPTH, begin);
        else read_input(x, me, input, begin);
#pragma unroll 1
        for (int tile = -RANK_TILES; tile < num_tiles<L>(); ++tile) multiply_tile<L>(me, x, tile);
    }
}

// ---- sums

// A finisher has EACH outputs of a part side by side, `output` first, of one row. Rows that are read at once are four
// apart: so they come from all banks.
struct Finisher {
    Worker me;
    const int row, output;
    float divisor;       // the norm's, of the row
    int position, slot;  // where the row stands
};

DEVICE int row_of(int thread) {
    const int mate = thread / MATES;
    if (ROWS == 16) return mate / 8 * 8 + mate % 8 / 4 * 2 + mate % 4 / 2 + mate % 2 * 4;
    return mate / 8 * 8 + mate % 8 / 2 + mate % 2 * 4;
}

// The warps' sums of a part.
DEVICE void add_warps(float (&total)[EACH], const Finisher &own, int part) {
    const float *at = own.me.shared.sums[0] + part * PART_SUMS + own.row * SUM_STRIDE + own.output;
    shared_floats(total, at);
#pragma unroll
    for (int warp = 1; warp < MULTIPLIERS; ++warp) {
        float more[EACH];
        shared_floats(more, at + warp * WARP_SUMS);
#pragma unroll
        for (int i = 0; i < EACH; ++i) total[i] += more[i];
    }
}

// Over the threads that share a row, neighbours first.
DEVICE float add_mates(float value) {
#pragma unroll
    for (int mask = 1; mask < MATES; mask *= 2) value += from_lane_xor(value, mask);
    return value;
}

// Squares of a row of a part, two and two: in one order, however many of them a thread has.
DEVICE float add_squares(const float (&values)[EACH]) {
    float squares[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) squares[i] = rounded_square(values[i]);
#pragma unroll
    for (int apart = 1; apart < EACH; apart *= 2)
#pragma unroll
        for (int i = 0; i < EACH; i += 2 * apart) squares[i] += squares[i + apart];
    return add_mates(squares[0]);
}

DEVICE void see_sums(Worker &me) { barrier_wait(&me.shared.summed, me.turn++ % 2); }

DEVICE void leave_sums(const Worker &me) {
    sync_warp();
    if (me.lane == 0) barrier_arrive(&me.shared.left);
}

// A x, for canvas rows.
DEVICE void finish_low(Finisher &own) {
    Shared &shared = own.me.shared;
#pragma unroll 1
    for (int tile = 0; tile < RANK_TILES; ++tile) {
        see_sums(own.me);
        const bool is_canvas = own.me.args.gate[own.row];
#pragma unroll
        for (int part = 0; part < TEAM; ++part) {
            float sum[EACH];
            add_warps(sum, own, part);
#pragma unroll
            for (int i = 0; i < EACH; ++i)
                shared.low[own.row][(tile * TEAM + part) * 16 + own.output + i] = round_16(is_canvas ? sum[i] : 0.0f);
        }
        leave_sums(own.me);
    }
    if (RANK > 0 && own.me.lane == 0) barrier_arrive(&shared.lowered);
}

// After the last store of all finishers: raise a counter for other programs, who look at what they are handed.
DEVICE void tell(const Worker &me, int *counter) {
    sync_finishers();
    if (me.thread == 0) count(counter);
}

// ---- what follows a linear

// silu(gate) * up: of a part's 16 the first eight are gates, the others their ups.
DEVICE void finish_gate(const Finisher &own, const float (&sum)[EACH], int part) {
    u16 bits[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const float mine = sum[i] * factor_of<GateUp>(own.me, part, own.output + i) * own.divisor;
        const float up = from_lane_xor(mine, MATES / 2);
        bits[i] = narrow(divide(mine, 1.0f + exponential(-mine)) * up);
    }
    if (own.output < 8) hand(own.me.args.ffn + input_at(own.row, part * 8 + own.output), bits);
}

// Raw numbers of qkv as a linear layer would leave them.
DEVICE void raw_qkv(float (&raw)[EACH], const Finisher &own, const float (&sum)[EACH], int part) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        raw[i] = sum[i] * factor_of<Qkv>(own.me, part, own.output + i) * own.divisor;
        if (BIAS) raw[i] += term_of<Qkv>(own.me, part, own.output + i);
        raw[i] = of_bf16(to_bf16(raw[i]));
    }
}

// How far the row turns a part's columns.
struct Angles {
    float cosine[EACH], sine[EACH];
};

DEVICE void read_angles(Angles &angles, const Finisher &own, int column) {
    const float *from = own.me.args.angles + (long long)own.position * HEAD_DIM + column % (HEAD_DIM / 2);
    fresh_floats(angles.cosine, from);
    fresh_floats(angles.sine, from + HEAD_DIM / 2);
}

// Whether what `at` belongs to is turned, and has a norm: a query or a key.
DEVICE bool is_turned(int at) { return at / HEAD_DIM < HEADS + KV_HEADS; }

DEVICE void rotate(float (&values)[EACH], const Finisher &own, const Angles &angles, int at) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const float other = from_lane_xor(values[i], MATES / 2);
        const float turned = values[i] * angles.cosine[i] + (own.output < 8 ? -other : other) * angles.sine[i];
        values[i] = is_turned(at) ? turned : values[i];
    }
}

// Into the output from `at` on; of a key or value also into the cache.
DEVICE void store_qkv(const Finisher &own, const float (&values)[EACH], int at) {
    const Between &args = own.me.args;
    const int head = at / HEAD_DIM;
    u16 bits[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) bits[i] = to_bf16(values[i]);
    store_halves(args.qkv + own.row * QKV_DIM + at, bits);
    if (head < HEADS || own.slot < 0) return;
    u16 *cache = is_turned(at) ? args.k_cache : args.v_cache;
    store_halves(cache + ((long long)own.slot * KV_HEADS + (head - HEADS) % KV_HEADS) * HEAD_DIM + at % HEAD_DIM, bits);
}

// ---- the norm of a head, of which several programs have parts

constexpr int HEAD_PARTS = HEAD_DIM / 16;
constexpr int MOST_WAITING = Qkv::MOST_TILES;  // parts of this program

DEVICE float *squares_of(const Finisher &own, int part) {
    return own.me.args.head_squares + (part / HEAD_PARTS * ROWS + own.row) * HEAD_PARTS;
}

// A part leaves its squares.
DEVICE void leave_square(const Finisher &own, const float (&raw)[EACH], int part) {
    const float square = add_squares(raw);
    if (own.output == 0) hand(squares_of(own, part) + part % HEAD_PARTS, square);
}

// Squares of the heads that this program has parts of, as soon as all programs have left theirs. A value's are as good
// as any: nobody looks at what comes of them.
DEVICE void read_squares(float (&squares)[MOST_WAITING][HEAD_PARTS / 4][4], const Finisher &own, int first, int count) {
    u32 most;
    do {
        most = 0;
#pragma unroll
        for (int at = 0; at < MOST_WAITING * (HEAD_PARTS / 4); ++at) {
            const int part = at / (HEAD_PARTS / 4), four = at % (HEAD_PARTS / 4);
            if (part < count) handed(squares[part][four], squares_of(own, first + part * TEAM) + four * 4);
        }
#pragma unroll
        for (int at = 0; at < MOST_WAITING * HEAD_PARTS; ++at) {
            const int part = at / HEAD_PARTS;
            if (part < count) most = larger_word(most, word_of(squares[part][at % HEAD_PARTS / 4][at % 4]));
        }
    } while (is_any(most == UNSET));
}

// This program's parts, when the squares of their whole heads are there. They are turned already: a head has one divisor.
DEVICE void finish_heads(const Finisher &own) {
    const Worker &me = own.me;
    const int first = first_part<Qkv>() + member(), count = num_tiles<Qkv>();
    float squares[MOST_WAITING][HEAD_PARTS / 4][4];
    read_squares(squares, own, first, count);
#pragma unroll
    for (int at = 0; at < MOST_WAITING && at < count; ++at) {
        const int output = output_of<Qkv>(first + at * TEAM, own.output);
        float values[EACH], square = 0.0f;
        shared_floats(values, me.shared.kept[at][0] + me.thread * EACH);
#pragma unroll
        for (int of = 0; of < HEAD_PARTS; ++of) square += squares[at][of / 4][of % 4];
        const float divisor = inverse_root(square / HEAD_DIM + me.args.head_eps);
#pragma unroll
        for (int i = 0; i < EACH; ++i) values[i] *= is_turned(output) ? divisor : 1.0f;
        store_qkv(own, values, output);
    }
}

// Every eighth four of a row's squares from the `first` on, as soon as all are there.
DEVICE float add_fours(const float *from, int first) {
    constexpr int FOURS = DIM / 64, STEPS = (FOURS + 7) / 8;
    float sum;
    u32 most;
    do {
        most = 0, sum = 0.0f;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int place = step * 8 + first;
            float four[4];
            handed(four, from + (place < FOURS ? place : 0) * 4);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                most = larger_word(most, word_of(four[j]));
                sum += place < FOURS ? four[j] : 0.0f;
            }
        }
    } while (is_any(most == UNSET));
    return sum;
}

// The norm's divisor from the squares that the linear before left, by part: eight sums, whether a row has eight threads
// or four.
DEVICE void read_divisor(Finisher &own, const float *squares, float eps) {
    constexpr int SUMS_EACH = 8 / MATES;
    float sums[SUMS_EACH];
#pragma unroll
    for (int sum = 0; sum < SUMS_EACH; ++sum)
        sums[sum] = add_mates(add_fours(squares + own.row * (DIM / 16), sum * MATES + own.me.thread % MATES));
    own.divisor = inverse_root((SUMS_EACH == 1 ? sums[0] : sums[0] + sums[SUMS_EACH - 1]) / DIM + eps);
}

// What the next linear will read of the stream behind this one.
template <class L> DEVICE u16 *next_input(const Worker &me, int row, int at) {
    return (L::KIND == O ? me.args.middle : me.args.scaled) + input_at(row, at);
}
template <class L> DEVICE float *next_square(const Worker &me, int row, int part) {
    return (L::KIND == O ? me.args.middle_squares : me.args.squares) + row * (DIM / 16) + part;
}

// A number onto the residual stream, rounded before it is added and again after, as the plain network does.
template <class L> DEVICE u16 add_onto(const Worker &me, float sum, u16 before, int part, int output) {
    return to_bf16(of_bf16(to_bf16(sum * factor_of<L>(me, part, output))) + of_bf16(before));
}

// Numbers onto the stream, and what the next norm will want of them.
template <class L>
DEVICE void finish_add(const Finisher &own, const float (&sum)[EACH], const u16 (&before)[EACH], int part) {
    const Between &args = own.me.args;
    const int at = own.row * DIM + part * 16 + own.output;
    u16 bits[EACH], scaled[EACH];
    float values[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        bits[i] = add_onto<L>(own.me, sum[i], before[i], part, own.output + i);
        values[i] = of_bf16(bits[i]);
        scaled[i] = narrow(values[i] * term_of<L>(own.me, part, own.output + i));
    }
    store_halves(args.stream + at, bits);
    hand(next_input<L>(own.me, own.row, part * 16 + own.output), scaled);
    const float square = add_squares(values);
    if (own.output == 0) hand(next_square<L>(own.me, own.row, part), square);
}

// ---- a linear of teams

// A thread's numbers of the part that its program finishes: their sums, and what else they need.
struct Numbers {
    float sum[EACH];
    Angles angles;
    u16 gain[EACH], before[EACH];
};

// On its way while they are multiplied.
template <class L> DEVICE void ask_rest(Numbers &numbers, const Finisher &own, int part) {
    const int output = output_of<L>(part, own.output);
    if (!L::IS_WIDE) fresh_halves(numbers.before, own.me.args.stream + own.row * DIM + output);
    if (L::KIND == QKV) read_angles(numbers.angles, own, output);
    if (L::KIND == QKV && HEAD_NORM)
        fresh_halves(numbers.gain, (output < Q_DIM ? own.me.args.q_gain : own.me.args.k_gain) + output % HEAD_DIM);
}

// Sums of a part over this program's ranges, so far.
template <class L> DEVICE void add_part(float (&total)[EACH], const Finisher &own, int at, int part, int range) {
    float *kept = own.me.shared.kept[L::RANGES_EACH > 1 ? at : 0][part] + own.me.thread * EACH;
    add_warps(total, own, part);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (range > 0) total[i] = kept[i] + total[i];
        if (range < L::RANGES_EACH - 1) kept[i] = total[i];
    }
}

// The sums of tile `at` over one range: those of the own part stay, the others go to the program that finishes them.
template <class L> DEVICE void gather(Numbers &numbers, Finisher &own, int at, int range) {
    Shared &shared = own.me.shared;
    const int other = member() ^ 1;
    const bool is_last = range == L::RANGES_EACH - 1;
    if (is_last) ask_rest<L>(numbers, own, (first_tile<L>() + at) * TEAM + member());
    see_sums(own.me);
    if (TEAM > 1) {
        float total[EACH];
        add_part<L>(total, own, at, other, range);
        if (is_last) send(shared.sent[at] + own.me.thread * EACH, total, &shared.came[L::KIND][at], other);
    }
    add_part<L>(numbers.sum, own, at, member(), range);
    leave_sums(own.me);
}

// The own part of tile `at`, when the other program's sums have come.
template <class L> DEVICE void finish_part(const Finisher &own, Numbers &numbers, int at) {
    const int part = (first_tile<L>() + at) * TEAM + member(), place = own.me.thread * EACH;
    Shared &shared = own.me.shared;
    if (TEAM > 1) {
        float more[EACH];
        barrier_wait(&shared.came[L::KIND][at], 0);
        shared_floats(more, shared.sent[at] + place);
#pragma unroll
        for (int i = 0; i < EACH; ++i) numbers.sum[i] += more[i];
    }
    if constexpr (!L::IS_WIDE) {
        finish_add<L>(own, numbers.sum, numbers.before, part);
    } else if constexpr (L::KIND == GATE_UP) {
        finish_gate(own, numbers.sum, part);
    } else {
        const int output = output_of<L>(part, own.output);
        float values[EACH];
        raw_qkv(values, own, numbers.sum, part);
        if (HEAD_NORM) leave_square(own, values, part);
#pragma unroll
        for (int i = 0; i < EACH && HEAD_NORM; ++i) values[i] *= is_turned(output) ? of_bf16(numbers.gain[i]) : 1.0f;
        rotate(values, own, numbers.angles, output);
#pragma unroll
        for (int i = 0; i < EACH && HEAD_NORM; ++i) shared.kept[at][0][place + i] = values[i];
        if (!HEAD_NORM) store_qkv(own, values, output);
    }
}

// A part is finished when the next tile's sums are gathered: so the two of a team can be a tile apart.
template <class L> DEVICE void finish_team(Finisher &own, const float *squares, float eps) {
    const int count = num_tiles<L>();
    if (L::IS_WIDE) read_divisor(own, squares, eps);
#pragma unroll 1
    for (int range = 0; range < L::RANGES_EACH && count > 0; ++range) {
        const bool is_last = range == L::RANGES_EACH - 1;
        Numbers numbers = {};
        finish_low(own);
#pragma unroll 1
        for (int at = 0; at <= count; ++at) {
            Numbers next = {};
            if (at < count) gather<L>(next, own, at, range);
            if (is_last && at > 0) finish_part<L>(own, numbers, at - 1);
            numbers = next;
        }
    }
    if constexpr (L::KIND == QKV && HEAD_NORM) finish_heads(own);
    if (L::KIND != QKV) tell(own.me, own.me.args.counters + L::KIND);
    if (L::KIND == O && own.me.thread == 0) settle();  // the stream, before this program counts gate and up
}

// ---- a linear of sets

// The sums of this program's range, left for the set.
template <class L> DEVICE void leave_set(Finisher &own) {
    const int range = first_range<L>();
    if (range >= L::RANGES) return;
    if (num_tiles<L>() > 0) finish_low(own);
#pragma unroll 1
    for (int tile = first_tile<L>(); tile < end_tile<L>(); ++tile) {
        see_sums(own.me);
#pragma unroll
        for (int part = 0; part < TEAM; ++part) {
            const long long place = ((long long)(tile * TEAM + part) * L::RANGES + range) * ROWS + own.row;
            float sum[EACH];
            add_warps(sum, own, part);
            hand(own.me.args.sums + place * 16 + own.output, sum);
        }
        leave_sums(own.me);
    }
}

// The sums of two outputs of a set's part over every range, as soon as they are there; unset behind it.
template <class L> DEVICE void read_sums(float (&each)[L::RANGES][2], float *from) {
    u32 most;
    do {
        most = 0;
#pragma unroll
        for (int range = 0; range < L::RANGES; ++range) handed(each[range], from + range * (16 * ROWS));
#pragma unroll
        for (int at = 0; at < L::RANGES * 2; ++at) most = larger_word(most, word_of(each[at / 2][at % 2]));
    } while (most == UNSET);
#pragma unroll
    for (int range = 0; range < L::RANGES; ++range) store_8(from + range * (16 * ROWS), UNSET);
}

// Two numbers of a set's part.
template <class L> DEVICE void finish_sums(const Worker &me, int part, int row) {
    const int output = me.thread % 8 * 2, at = row * DIM + part * 16 + output;
    float each[L::RANGES][2], sum[2] = {}, values[2];
    u16 before[2], bits[2], scaled[2];
    fresh_halves(before, me.args.stream + at);
    read_sums<L>(each, me.args.sums + ((long long)part * L::RANGES * ROWS + row) * 16 + output);
    sync_warp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int range = 0; range < L::RANGES; ++range) sum[i] += each[range][i];
        bits[i] = add_onto<L>(me, sum[i], before[i], part, output + i);
        values[i] = of_bf16(bits[i]);
        scaled[i] = narrow(values[i] * term_of<L>(me, part, output + i));
    }
    store_halves(me.args.stream + at, bits);
    hand(next_input<L>(me, row, part * 16 + output), scaled);
    float square = rounded_square(values[0]) + rounded_square(values[1]);
#pragma unroll
    for (int mask = 1; mask < 8; mask *= 2) square += from_lane_xor(square, mask);
    if (output == 0) hand(next_square<L>(me, row, part), square);
}

// A program's share of a set's parts, when the sums of all ranges are there. The multipliers do it: they are many, and
// have nothing else to do then.
template <class L> DEVICE void finish_set(Worker &me) {
    const int range = first_range<L>();
    if (range >= L::RANGES) return;
#pragma unroll 2
    for (int part = first_part<L>() + range; part < end_part<L>(); part += L::RANGES)
#pragma unroll
        for (int row = me.thread / 8; row < ROWS; row += MULTIPLIERS * 4) finish_sums<L>(me, part, row);
    sync_multipliers();  // who asks for the next input slows down who still makes it
    if (L::KIND == O && me.thread == 0) settle();  // as above
    if (me.thread == 0) count(me.args.counters + L::KIND);
}

// ---- all of it

// Until all programs have finished a linear.
template <class L> DEVICE void wait_done(const Worker &me) {
    if (me.thread == 0)
        while (see(me.args.counters + L::KIND) < L::WORKERS) {}
    sync_finishers();
}

template <class L> DEVICE void finish_linear(Finisher &own, const float *squares = nullptr, float eps = 0.0f) {
    if constexpr (L::IN_SETS) leave_set<L>(own);
    else finish_team<L>(own, squares, eps);
}

template <class L> DEVICE void multiply_linear(Worker &me, const u16 *input) {
    multiply_ranges<L>(me, input);
    if constexpr (L::IN_SETS) {
        barrier_wait(L::KIND == DOWN ? &me.shared.settled : &me.shared.known, 0);
        finish_set<L>(me);
    }
}

DEVICE void multiply_all(Worker &me) {
    if (me.args.has_layer) {
        multiply_linear<Output>(me, me.args.attended);
        multiply_linear<GateUp>(me, me.args.middle);
        multiply_linear<Down>(me, me.args.ffn);
    }
    if (me.args.has_qkv) multiply_linear<Qkv>(me, me.args.scaled);
}

// For the next launch.
DEVICE void unset_stale(const Worker &me) {
#pragma unroll 1
    for (int at = (program_index() * FINISHERS * 32 + me.thread) * 16; at < me.args.stale_bytes;
         at += PROGRAMS * FINISHERS * 32 * 16)
        store_16(me.args.stale + at, UNSET);
}

// To wait for a linear also leaves to the other program of the team the room for what it sends next.
DEVICE void finish_all(Finisher &own) {
    const Between &args = own.me.args;
    unset_stale(own.me);
    barrier_wait(&own.me.shared.known, 0);
    if (args.has_layer) {
        finish_linear<Output>(own);
        wait_done<Output>(own.me);
        finish_linear<GateUp>(own, args.middle_squares, args.ffn_eps);
        wait_done<GateUp>(own.me);
        if (own.me.thread == 0) barrier_arrive(&own.me.shared.settled);
        finish_linear<Down>(own);
        if (args.has_qkv) wait_done<Down>(own.me);
    }
    let_next();
    if (!args.has_qkv) return;
    own.position = args.positions[own.row];
    own.slot = args.slots[own.row];
    finish_linear<Qkv>(own, args.squares, args.next_eps);
}

// The ring's barriers by the warp that will use them first, all others by one that is in no hurry.
DEVICE void make_ring(const Worker &me) {
    if (me.lane > 0) return;
#pragma unroll 1
    for (int slot = 0; slot < SLOTS; ++slot) {
        barrier_make(&me.shared.full[slot], 1);
        barrier_make(&me.shared.used[slot], MULTIPLIERS);
    }
    barriers_made();
}

DEVICE void make_barriers(const Worker &me) {
    if (me.lane == 0) {
        barrier_make(&me.shared.summed, MULTIPLIERS);
        barrier_make(&me.shared.left, FINISHERS);
        barrier_make(&me.shared.lowered, FINISHERS);
        barrier_make(&me.shared.known, ASKERS);
        barrier_make(&me.shared.settled, 1);
    }
    if (me.lane == 0 && TEAM > 1)
#pragma unroll 1
        for (int at = 0; at < NUM_LINEARS * SENT_TILES; ++at) {
            u64 *came = &me.shared.came[at / SENT_TILES][at % SENT_TILES];
            barrier_make(came, 1);
            barrier_expect(came, 16 * ROWS * sizeof(float));
        }
    barriers_made();
}

// What the askers do.
DEVICE void ask(const Worker &me) {
    give_registers<BRINGING>();
    if (me.warp == FIRST_ASKER) make_barriers(me);
    sync_warp();
    join_team();
    meet_team();
    ask_constants(Worker{me.args, me.shared, me.thread - 32 * FIRST_ASKER, me.warp, me.lane, 0, 0, 0});
    if (IS_FAR && me.args.has_qkv) ask_keys(me.args, me.thread - 32 * FIRST_ASKER);
}

// What those who multiply and finish do first. Little stands before the merge: a program begins when attention has left
// its multiprocessor, and then all wait for it.
DEVICE void prepare(const Worker &me) {
    join_team();
    if (me.args.has_layer) merge(me);
    else wait_turn();
    sync_mergers();
    meet_team();
}

KERNEL(TEAM, THREADS) layer_fused(const GRID_CONSTANT Between args) {
    Shared &shared = *(Shared *)shared_memory();
    const int thread = thread_index(), warp = thread / 32;
    Worker me{args, shared, thread, warp, thread % 32, 0, 0, 0};
    if (warp > BRINGER) {
        ask(me);
        return;
    }
    if (warp == BRINGER) {
        make_ring(me);
        sync_warp();
        join_team();
        give_registers<BRINGING>();
        if (me.lane == 0) bring(me);
        return;
    }
    prepare(me);
    if (warp >= FIRST_FINISHER) {
        give_registers<FINISHING>();
        const int mine = thread - FIRST_FINISHER * 32;
        Finisher own{Worker{args, shared, mine, warp, me.lane, 0, 0, 0}, row_of(mine), mine % MATES * EACH, 0.0f, 0, 0};
        finish_all(own);
    } else {
        take_registers<MULTIPLYING>();
        if (warp < MULTIPLIERS) multiply_all(me);
    }
}
