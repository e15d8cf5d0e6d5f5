// A persistent kernel for everything between two attentions, up to 32 rows: merge of attention's splits, output linear,
// gate and up, down, and the next layer's qkv. One CTA per SM stays resident through all of it.
//
// Tiling. The outputs of a linear are split into tiles, K into ranges whose input fits into registers. The MMA warps of a
// CTA split a range equally. Their sums are added in the order of the warps, those of ranges in the order of the ranges,
// so the reduction order is fixed and the kernel is batch-invariant.
//
// Clusters. Every CTA that multiplies a range reads all of its input, and at 32 rows inputs are a third of all traffic.
// Two CTAs therefore form a cluster: they share the cluster's tiles, each multiplies half of K, and each finishes half of
// every tile with the sums that its peer sends through distributed shared memory. A K of more ranges is split over CTA
// groups that exchange sums through global memory (split K).
//
// Synchronisation. Exchange buffers start as NaN sentinels. Consumers poll the data itself, not a flag, until the sentinel
// is gone, so producers need no fence before signalling. Counters remain for data that is reused: the residual stream, and
// buffers in shared memory.
//
// Warp roles, synchronised by mbarriers only. One warp loads weights of all four linears through a ring buffer in shared
// memory; while the GPU still computes an input, the weights for it are already loading. Weights are packed in the order
// in which lanes read them (layer_fused.py). Six or eight warps do the MMA with the input in registers. Four warps do the
// epilogue: reduce, exchange, and what follows a linear. Three warps prefetch constants and the next layer's KV.
//
// Adapter. Canvas rows use W x + B A x. A has so few outputs that every CTA multiplies all of it with its range of x, as
// tiles before its own. B is additional K for one of the MMA warps.
//
// Compile-time parameters (-D): NUM_CTAS, MMA_WARPS, CLUSTER (CTAs per cluster, 1 or 2), ROWS, DIM, FFN, HEADS, KV_HEADS,
// HEAD_DIM, RANK (of the canvas adapter, or 0), SPLITS and ATTENTION_ROWS (splits and rows of the attention launch, of
// which these rows may be a part), HEAD_NORM, BIAS, BITS (per weight), STAGES (of the ring buffer), STAGE_BLOCKS (k-blocks
// of a warp per stage), and the K ranges of each linear (O_RANGES ...).
#include "device.cuh"

// Warp roles, in warpgroups of four, which set their register count together. Warps 13-15 prefetch constants and the next
// layer's KV.
constexpr int EPILOGUE_WARPS = 4, FIRST_EPILOGUE_WARP = 8, LOAD_WARP = FIRST_EPILOGUE_WARP + EPILOGUE_WARPS,
              THREADS = 32 * (LOAD_WARP + 4);
constexpr int MMA_REGISTERS = 200, EPILOGUE_REGISTERS = 88, LOAD_REGISTERS = 24;  // registers per thread
static_assert(8 * MMA_REGISTERS + 4 * EPILOGUE_REGISTERS + 4 * LOAD_REGISTERS <= 65536 / 32, "registers");
constexpr int MERGE_WARPS = LOAD_WARP;  // warps that merge attention's splits first
constexpr int FIRST_PREFETCH_WARP = LOAD_WARP + 1, PREFETCH_WARPS = 3;
constexpr int MAX_PREFETCH_KEYS = 4096;  // keys

constexpr int BLOCK = 32;  // k-block of a warp
constexpr int KEY_BLOCK = 64;  // keys per block of attention
constexpr int NUM_CLUSTERS = NUM_CTAS / CLUSTER, TILE = 16 * CLUSTER;  // outputs of a tile: one subtile of 16 per CTA

// Memory layout of a weight tile by bit width, in bytes: what a lane reads of a subtile, a subtile, a k-block of one warp
// and of all warps; and the k-blocks per stage.
DEVICE constexpr int subtile_bytes(int bits) { return bits == 4 ? 320 : 64 * bits; }
template <int bits> struct TileLayout {
    static constexpr int LANE = bits == 4 ? 8 : 16, SUBTILE = subtile_bytes(bits);
    static constexpr int BLOCK = CLUSTER * SUBTILE, ALL_WARPS = MMA_WARPS * BLOCK;
    static constexpr int BLOCKS_PER_STAGE = STAGE_BLOCKS * subtile_bytes(BITS) / SUBTILE;
    static_assert(BLOCKS_PER_STAGE > 0, "a stage holds a k-block");
};
constexpr int A_BITS = RANK > 0 ? 16 : BITS;  // of the adapter's A

constexpr int ROW_TILES = ROWS / 8;
// Outputs per epilogue thread, threads per row.
constexpr int PER_THREAD = 16 * ROWS / (32 * EPILOGUE_WARPS), ROW_THREADS = 16 / PER_THREAD;
constexpr int SUM_STRIDE = 20;  // floats per row of a subtile's sums, without bank conflicts
constexpr int SUBTILE_SUMS = ROWS * SUM_STRIDE, WARP_SUMS = CLUSTER * SUBTILE_SUMS;
constexpr int QKV_HEADS = HEADS + 2 * KV_HEADS, Q_DIM = HEADS * HEAD_DIM, QKV_DIM = QKV_HEADS * HEAD_DIM;
constexpr int RANK_TILES = (RANK + TILE - 1) / TILE, RANK_BLOCKS = (RANK + BLOCK - 1) / BLOCK;
constexpr int RANK_K = RANK_BLOCKS * BLOCK;
constexpr bool IS_QUANTISED = BITS < 16;  // inputs of quantised weights are fp16
constexpr float INPUT_SCALE = IS_QUANTISED ? 1.0f / 64 : 1.0f;

enum { O, GATE_UP, DOWN, QKV, NUM_LINEARS };

template <int kind, int k_dim, int outputs, int ranges> struct Linear {
    static constexpr int KIND = kind, K_DIM = k_dim, TILES = outputs / TILE, RANGES = ranges;
    static constexpr bool IS_WIDE = kind == GATE_UP || kind == QKV;  // after a norm, many tiles
    static constexpr bool IS_SPLIT_K = !IS_WIDE && ranges > CLUSTER;
    static constexpr int GROUPS = IS_SPLIT_K ? NUM_CTAS / ranges : NUM_CLUSTERS;  // that share the tiles
    static constexpr int CTA_RANGES = IS_SPLIT_K ? 1 : ranges / CLUSTER;  // K ranges per CTA
    static constexpr int MAX_TILES = (TILES + GROUPS - 1) / GROUPS;  // per cluster or CTA group
    static constexpr int RANGE = k_dim / ranges, BLOCKS = RANGE / (MMA_WARPS * BLOCK);
    static constexpr int ACTIVE_CTAS = IS_SPLIT_K ? GROUPS * ranges : NUM_CLUSTERS * CLUSTER;  // CTAs with work
    static_assert(RANGE % (MMA_WARPS * BLOCK) == 0 && outputs % TILE == 0, "shape");
    static_assert(IS_SPLIT_K || ranges % CLUSTER == 0, "a cluster shares the ranges");
};

typedef Linear<O, Q_DIM, DIM, O_RANGES> Output;
typedef Linear<GATE_UP, DIM, 2 * FFN, GATE_UP_RANGES> GateUp;
typedef Linear<DOWN, FFN, DIM, DOWN_RANGES> Down;
typedef Linear<QKV, DIM, QKV_DIM, QKV_RANGES> Qkv;

DEVICE constexpr int max_of(int a, int b) { return a > b ? a : b; }
// Tiles whose sums are kept in shared memory: for the peer's sums, for further ranges, or for the squares of a head.
constexpr int PEER_TILES = CLUSTER == 1 ? 1 : max_of(max_of(Output::IS_SPLIT_K ? 1 : Output::MAX_TILES, GateUp::MAX_TILES),
                                                  max_of(Down::IS_SPLIT_K ? 1 : Down::MAX_TILES, Qkv::MAX_TILES));
constexpr int KEPT_TILES = max_of(
    max_of(GateUp::CTA_RANGES > 1 ? GateUp::MAX_TILES : 1, Output::CTA_RANGES > 1 ? Output::MAX_TILES : 1),
    max_of(Down::CTA_RANGES > 1 ? Down::MAX_TILES : 1, Qkv::CTA_RANGES > 1 || HEAD_NORM ? Qkv::MAX_TILES : 1));

constexpr int OWN_TILES = Output::MAX_TILES + GateUp::MAX_TILES + Down::MAX_TILES + Qkv::MAX_TILES;
constexpr int MAX_OUTPUTS =
    TILE * max_of(max_of(Output::MAX_TILES, GateUp::MAX_TILES), max_of(Down::MAX_TILES, Qkv::MAX_TILES));

struct Weights {
    const u8 *w;  // packed
    const float *scale;  // per output, for quantised weights
    const u8 *a, *b;  // the canvas adapter in 16 bits, packed: A as the weights, B by tiles and divided by `scale`
};

struct LayerArgs {
    Weights weights[NUM_LINEARS];
    const float *acc, *top, *total;  // partial softmax of attention: acc (SPLITS, ATTENTION_ROWS, HEADS, HEAD_DIM)
    // Exchanged between CTAs, sentinels before. Inputs of linears are in the order of `input_at`.
    u16 *attended;  // (Q_DIM / 32, ROWS, 32): merged attention
    u16 *ffn_input;  // the stream after attention times the gain of the ffn norm
    u16 *ffn;
    u16 *qkv_input;  // the stream after ffn times the next norm's gain; in row order before the first layer
    float *ffn_squares, *qkv_squares;  // (ROWS, DIM / 16): sums of squares of the stream, by subtile
    float *head_squares;  // (QKV_HEADS, ROWS, HEAD_SUBTILES)
    float *sums;  // (subtiles, ranges, ROWS, 16): split-K sums; reset to the sentinel once read
    u8 *next_exchange;  // exchange buffers of the next launch, which this one resets to the sentinel
    u16 *stream;  // (ROWS, DIM), the residual stream, bf16
    u16 *qkv;  // (ROWS, QKV_DIM), bf16: the output
    const u16 *ffn_gain, *next_gain, *bias, *q_gain, *k_gain;
    u16 *k_cache, *v_cache;
    const float *angles;  // (positions, 2, HEAD_DIM / 2)
    const int *positions, *slots, *gate;
    const int *prefix_end, *span_start, *span_end;  // visible keys per row: cached, of this forward
    const int *tiles, *pages;  // of attention: (num_tiles, 3) segment, first row, end row; (segments, max_pages)
    int *counters;  // zero before the launch
    float ffn_eps, next_eps, head_eps;
    int has_layer, has_qkv;  // whether this launch has the three linears after attention, and the next qkv
    int exchange_bytes, num_tiles, max_pages, page_size;
};

constexpr int NUM_COUNTERS = NUM_LINEARS;  // CTAs that have finished each linear

struct Shared {
    u8 ring[STAGES][STAGE_BLOCKS * TileLayout<BITS>::ALL_WARPS];
    float sums[MMA_WARPS][WARP_SUMS];
    float kept[KEPT_TILES][CLUSTER][16 * ROWS];  // by thread
    float peer_sums[PEER_TILES][16 * ROWS];  // from the peer CTA
    alignas(16) float scale[IS_QUANTISED ? NUM_LINEARS : 1][MAX_OUTPUTS];  // of this CTA's outputs
    alignas(16) u16 term[NUM_LINEARS][MAX_OUTPUTS];  // their gains or biases, bf16
    alignas(16) u16 ax[ROWS][max_of(RANK_K, 8)];  // A x of canvas rows
    alignas(16) u8 b[max_of(OWN_TILES * CLUSTER * RANK_BLOCKS * 1024, 16)];  // B of this CTA's tiles, linear by linear
    u64 stage_full[STAGES], stage_free[STAGES];  // a stage is loaded, all MMA warps have consumed it
    u64 sums_ready, sums_free;  // all MMA warps have stored their sums, the epilogue has read them
    u64 ax_ready;  // A x is stored
    u64 constants_ready, stream_ready;  // epilogue constants are loaded; the stream after output is final
    u64 peer_ready[NUM_LINEARS][PEER_TILES];  // the peer's sums have arrived
};

// State of a thread. `thread` counts threads of the same role, `turn` the sums that it has stored or read.
struct ThreadState {
    const LayerArgs &args;
    Shared &shared;
    const int thread, warp, lane;
    u32 turn, ax_turns;
    int stages_used;  // of the ring buffer, so far
};

// Rank of this CTA in its cluster.
DEVICE int cluster_rank() { return CLUSTER == 1 ? 0 : cta_index() % CLUSTER; }

// Rotate the tile assignment per linear, so that the remainder tiles do not always land on the same CTA.
template <class L> DEVICE int tile_share() {
    if (L::IS_SPLIT_K) return (cta_index() + L::KIND * (NUM_CTAS / NUM_LINEARS)) % NUM_CTAS;
    return (cta_index() / CLUSTER + L::KIND * (NUM_CLUSTERS / NUM_LINEARS)) % NUM_CLUSTERS;
}
template <class L> DEVICE int first_tile() { return tile_share<L>() % L::GROUPS * L::TILES / L::GROUPS; }
template <class L> DEVICE int end_tile() { return (tile_share<L>() % L::GROUPS + 1) * L::TILES / L::GROUPS; }
template <class L> DEVICE int num_tiles() { return end_tile<L>() - first_tile<L>(); }
template <class L> DEVICE int first_range() {
    return L::IS_SPLIT_K ? tile_share<L>() / L::GROUPS : cluster_rank() * L::CTA_RANGES;
}

DEVICE void sync_mma_warps() { named_barrier(1, MMA_WARPS * 32); }
DEVICE void sync_epilogue() { named_barrier(2, EPILOGUE_WARPS * 32); }
DEVICE void sync_merge_warps() { named_barrier(3, MERGE_WARPS * 32); }

// ---- load warp

// Load the weights of a tile over a range, stage by stage, each when all MMA warps have released it.
template <class L, int bits> DEVICE void load_tile(ThreadState &state, const u8 *weights, int slice, u64 policy) {
    constexpr int ALL_WARPS = TileLayout<bits>::ALL_WARPS, MAX_BLOCKS = TileLayout<bits>::BLOCKS_PER_STAGE;
    const u8 *from = weights + (long long)slice * (L::BLOCKS * ALL_WARPS);
#pragma unroll 1
    for (int begin = 0; begin < L::BLOCKS; begin += MAX_BLOCKS, ++state.stages_used) {
        const int stage = state.stages_used % STAGES,
                  bytes = (L::BLOCKS - begin < MAX_BLOCKS ? L::BLOCKS - begin : MAX_BLOCKS) * ALL_WARPS;
        if (state.stages_used >= STAGES)
            barrier_wait(&state.shared.stage_free[stage], (state.stages_used / STAGES - 1) % 2);
        bulk_copy(state.shared.ring[stage], from + begin * ALL_WARPS, bytes, &state.shared.stage_full[stage], policy);
    }
}

// Per range: the tiles of A before those of W.
template <class L> DEVICE void load_linear(ThreadState &state, u64 policy) {
    const Weights &weights = state.args.weights[L::KIND];
    if (first_range<L>() >= L::RANGES || num_tiles<L>() == 0) return;
#pragma unroll 1
    for (int range = first_range<L>(); range < first_range<L>() + L::CTA_RANGES; ++range) {
#pragma unroll 1
        for (int tile = 0; tile < RANK_TILES; ++tile)
            load_tile<L, A_BITS>(state, weights.a, range * RANK_TILES + tile, policy);
#pragma unroll 1
        for (int tile = first_tile<L>(); tile < end_tile<L>(); ++tile)
            load_tile<L, BITS>(state, weights.w, range * L::TILES + tile, policy);
    }
}

DEVICE void load_weights(ThreadState &state) {
    const u64 policy = evict_first_policy();
    if (state.args.has_layer) {
        load_linear<Output>(state, policy);
        load_linear<GateUp>(state, policy);
        load_linear<Down>(state, policy);
    }
    if (state.args.has_qkv) load_linear<Qkv>(state, policy);
}

// Whether a layer's KV is large enough that it has been evicted from L2 when attention reads it.
constexpr int KEY_DIM = KV_HEADS * HEAD_DIM;
constexpr bool PREFETCHES_KV = KEY_DIM >= 512;

// Prefetch KV of the next attention into L2, for every segment, up to a limit that does not evict weights.
DEVICE void prefetch_kv(const LayerArgs &args, int thread) {
    constexpr int LINES = KEY_DIM / 64;
    int budget = MAX_PREFETCH_KEYS * LINES, before = -1;
#pragma unroll 1
    for (int tile = 0; tile < args.num_tiles; ++tile) {
        const int segment = args.tiles[3 * tile], end = args.tiles[3 * tile + 2];
        if (args.tiles[3 * tile + 1] >= end) break;
        if (segment == before) continue;
        before = segment;
        const int count = args.prefix_end[end - 1] * LINES, num_lines = count < budget ? count : budget;
        budget -= num_lines;
#pragma unroll 1
        for (int at = cta_index() * PREFETCH_WARPS * 32 + thread; at < num_lines; at += NUM_CTAS * PREFETCH_WARPS * 32) {
            const int key = at / LINES, page = args.pages[segment * args.max_pages + key / args.page_size];
            if (page < 0) continue;  // of tree rows
            const long long place = ((long long)page * args.page_size + key % args.page_size) * KEY_DIM + at % LINES * 64;
            prefetch_line(args.k_cache + place);
            prefetch_line(args.v_cache + place);
        }
    }
}

// Output index of element `at` of a subtile. A subtile of gate and up has eight of each; of qkv eight columns of a head and
// their RoPE partners in the other half.
template <class L> DEVICE int output_of(int subtile, int at) {
    if (L::KIND == GATE_UP) return subtile * 8 + at % 8 + (at < 8 ? 0 : FFN);
    if (L::KIND != QKV) return subtile * 16 + at;
    return subtile / (HEAD_DIM / 16) * HEAD_DIM + subtile % (HEAD_DIM / 16) * 8 + at % 8 + (at < 8 ? 0 : HEAD_DIM / 2);
}
template <class L> DEVICE int first_subtile() { return first_tile<L>() * CLUSTER; }
template <class L> DEVICE int end_subtile() { return end_tile<L>() * CLUSTER; }

// Offset of a linear's B in shared memory.
template <class L> DEVICE constexpr int b_begin() {
    const int behind_output = L::KIND > O ? Output::MAX_TILES : 0;
    const int behind_gates = L::KIND > GATE_UP ? GateUp::MAX_TILES : 0;
    return CLUSTER * RANK_BLOCKS * 1024 * (behind_output + behind_gates + (L::KIND > DOWN ? Down::MAX_TILES : 0));
}

// Copy the epilogue constants of this CTA's outputs into shared memory, eight at a time, and B.
template <class L> DEVICE void copy_constants(const ThreadState &state, const u16 *terms) {
    const Weights &weights = state.args.weights[L::KIND];
    const int first = first_subtile<L>(), end = end_subtile<L>();
#pragma unroll 1
    for (int at = state.thread; at < (end - first) * 2; at += PREFETCH_WARPS * 32) {
        const int output = output_of<L>(first + at / 2, at % 2 * 8);
        if (terms) async_copy_16(state.shared.term[L::KIND] + at * 8, terms + output);
        if (IS_QUANTISED) {
            async_copy_16(state.shared.scale[L::KIND] + at * 8, weights.scale + output);
            async_copy_16(state.shared.scale[L::KIND] + at * 8 + 4, weights.scale + output + 4);
        }
    }
    if (RANK > 0)
#pragma unroll 4
        for (int at = state.thread * 16; at < (end - first) * (RANK_BLOCKS * 1024); at += PREFETCH_WARPS * 32 * 16)
            async_copy_16(state.shared.b + b_begin<L>() + at, weights.b + first * (RANK_BLOCKS * 1024) + at);
}

// Runs while other warps merge. The epilogue waits for `known`.
DEVICE void copy_all_constants(const ThreadState &state) {
    if (state.args.has_layer) {
        copy_constants<Output>(state, state.args.ffn_gain);
        copy_constants<GateUp>(state, nullptr);
        copy_constants<Down>(state, state.args.next_gain);
    }
    if (state.args.has_qkv) copy_constants<Qkv>(state, BIAS ? state.args.bias : nullptr);
    // B is zero beyond RANK, but zero times NaN is NaN, so A x is zeroed there too.
    for (int at = state.thread; at < ROWS * (RANK_K - RANK); at += PREFETCH_WARPS * 32)
        state.shared.ax[at % ROWS][RANK + at / ROWS] = 0;
    wait_async_copies();
    sync_warp();
    if (state.lane == 0) barrier_arrive(&state.shared.constants_ready);
}

// Scale of a sum, and gain or bias of an output.
template <class L> DEVICE float scale_of(const ThreadState &state, int subtile, int output) {
    return IS_QUANTISED ? state.shared.scale[L::KIND][(subtile - first_subtile<L>()) * 16 + output] / INPUT_SCALE : 1.0f;
}
template <class L> DEVICE float term_of(const ThreadState &state, int subtile, int output) {
    return from_bf16(state.shared.term[L::KIND][(subtile - first_subtile<L>()) * 16 + output]);
}

// Round a scaled value to the input format; scale and round a value.
DEVICE u16 round_to_input(float value) {
    if (!IS_QUANTISED) return to_bf16(value);
    return to_fp16(value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value);
}
DEVICE u16 to_input(float value) { return round_to_input(value * INPUT_SCALE); }

// Offset of element `at` of a row in a linear's input, in the order in which lanes read it, 16 bytes each.
DEVICE int input_at(int row, int at) {
    return (at / BLOCK * ROW_TILES + row / 8) * 256 + (row % 8 * 4 + at % BLOCK / 8) * 8 + at % 8;
}

// ---- merge of attention's splits

// Keys visible to a row: cached ones, and whether the last split holds keys of this forward. Other splits are unwritten.
struct Visible {
    int num_keys;
    bool has_span;
};

DEVICE Visible visible_to(const LayerArgs &args, int row) {
    return Visible{args.prefix_end[row], args.span_end[row] > args.span_start[row]};
}
DEVICE bool has_keys(int split, const Visible &seen) {
    return split * KEY_BLOCK < seen.num_keys || (split == SPLITS - 1 && seen.has_span);
}

// One warp per (row, head) merges the splits in ascending order. A split without keys has weight zero.
DEVICE void merge_head(const ThreadState &state, int at, const Visible &seen) {
    constexpr int PER_THREAD = HEAD_DIM / 32, STRIDE = ATTENTION_ROWS * HEADS;
    const int mine = state.lane % SPLITS;
    float top = -INFINITY, total = 0.0f, parts[SPLITS][PER_THREAD] = {};
    if (has_keys(mine, seen)) {
        top = load_cg(state.args.top + mine * STRIDE + at);
        total = load_cg(state.args.total + mine * STRIDE + at);
    }
#pragma unroll
    for (int split = 0; split < SPLITS; ++split)
        if (has_keys(split, seen))
            load_cg_floats(parts[split],
                           state.args.acc + ((long long)split * STRIDE + at) * HEAD_DIM + state.lane * PER_THREAD);
    float best = top;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) best = maximum(best, shuffle_xor(best, mask));
    const float weight = power_of_two(top - (best == -INFINITY ? 0.0f : best));
    float sum = 0.0f, y[PER_THREAD] = {};
#pragma unroll
    for (int split = 0; split < SPLITS; ++split) {
        const float mine = shuffle(weight, split);
        sum += mine * shuffle(total, split);
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) y[i] += mine * parts[split][i];
    }
    const float shrink = 1.0f / (sum > 0.0f ? sum : 1.0f);
    u16 bits[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) bits[i] = to_input(y[i] * shrink);
    store_relaxed(state.args.attended + input_at(at / HEADS, at % HEADS * HEAD_DIM + state.lane * PER_THREAD), bits);
}

// Row tables were written before the previous launch, so they are read before the wait.
DEVICE void merge(const ThreadState &state) {
    int at = cta_index() + state.warp * NUM_CTAS;
    Visible seen = visible_to(state.args, at / HEADS % ROWS);
    pdl_wait();
    for (; at < ROWS * HEADS; at += NUM_CTAS * MERGE_WARPS) {
        merge_head(state, at, seen);
        seen = visible_to(state.args, (at + NUM_CTAS * MERGE_WARPS) / HEADS % ROWS);
    }
}

// ---- MMA warps

DEVICE void mma_input(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    if (IS_QUANTISED) mma_fp16(c, a0, a1, a2, a3, b0, b1);
    else mma_bf16(c, a0, a1, a2, a3, b0, b1);
}

// Poll samples of an input's k-blocks: of every eight columns, in rows 16 apart, which covers nearly all producers. A lane
// whose sample has arrived stops loading.
template <int blocks> DEVICE void poll_samples(const ThreadState &state, const u16 *input, int begin) {
    const u16 *from = input + input_at(state.lane % 16, begin * BLOCK + state.lane % (blocks * 4) * 8);
    u32 seen[ROWS / 16], max_seen;
#pragma unroll
    for (int i = 0; i < ROWS / 16; ++i) seen[i] = SENTINEL;
    do {
        max_seen = 0;
#pragma unroll
        for (int i = 0; i < ROWS / 16; ++i) {
            if (seen[i] == SENTINEL) seen[i] = load_relaxed_4(from + i * 512);
            max_seen = max_word(max_seen, seen[i]);
        }
    } while (warp_any(max_seen == SENTINEL));
}

// Load k-blocks of an input from block `begin` on: a lane holds eight consecutive values of every block for each of its
// rows. The packing decides the k-order. By now the input has usually arrived.
template <int blocks>
DEVICE void poll_input(uint4 (&x)[blocks][ROW_TILES], const ThreadState &state, const u16 *input, int begin) {
    const u16 *from = input + begin * (ROWS * BLOCK) + state.lane * 8;
    u32 max_seen;
    poll_samples<blocks>(state, input, begin);
    do {
        max_seen = 0;
#pragma unroll
        for (int at = 0; at < blocks * ROW_TILES; ++at)
            x[at / ROW_TILES][at % ROW_TILES] = load_relaxed_16(from + at * 256);
#pragma unroll
        for (int at = 0; at < blocks * ROW_TILES; ++at) {
            const uint4 &four = x[at / ROW_TILES][at % ROW_TILES];
            max_seen = max_word(max_seen, max_word(max_word(four.x, four.y), max_word(four.z, four.w)));
        }
    } while (warp_any(max_seen == SENTINEL));
}

// The same for an input in row order.
template <int blocks>
DEVICE void load_rows(uint4 (&x)[blocks][ROW_TILES], const ThreadState &state, const u16 *input, int k_dim, int begin) {
    const u16 *from = input + state.lane / 4 * k_dim + begin * BLOCK + state.lane % 4 * 8;
#pragma unroll
    for (int block = 0; block < blocks; ++block)
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile) x[block][tile] = load_cg_16(from + tile * 8 * k_dim + block * BLOCK);
}

// One subtile times a k-block: `low` holds the first eight outputs, `high` the others, eight weights per lane each.
DEVICE void mma_block(float (&acc)[ROW_TILES][4], uint4 low, uint4 high, const uint4 (&x)[ROW_TILES]) {
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile) mma_input(acc[tile], low.x, high.x, low.y, high.y, x[tile].x, x[tile].y);
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile) mma_input(acc[tile], low.z, high.z, low.w, high.w, x[tile].z, x[tile].w);
}

DEVICE uint4 widen_fp8(u32 four, u32 other) {
    uint4 wide;
    wide.x = e4m3_to_fp16((u16)four), wide.y = e4m3_to_fp16((u16)(four >> 16));
    wide.z = e4m3_to_fp16((u16)other), wide.w = e4m3_to_fp16((u16)(other >> 16));
    return wide;
}

// Dequantise eight int4 weights; odd ones are in the upper half. `group` holds step and minimum. The low nibble of a half,
// read as fp16, is n times a power of two, and steps are stored times its inverse (int4_packing.py).
DEVICE uint4 widen_int4(u32 eight, u32 group) {
    u32 step, least;
    broadcast_halves(group, step, least);
    const u32 later = eight >> 8;
    const u32 further = fma_fp16x2(step, 0x2c002c00, 0);  // 1/16, for the next four bits
    uint4 wide;
    wide.x = fma_fp16x2(eight & 0x000f000f, step, least), wide.y = fma_fp16x2(eight & 0x00f000f0, further, least);
    wide.z = fma_fp16x2(later & 0x000f000f, step, least), wide.w = fma_fp16x2(later & 0x00f000f0, further, least);
    return wide;
}

// Load a lane's weights of a subtile: of its output among the first eight, and of the one eight further on. int4 weights
// are followed by the steps and minimums of the 16 outputs.
template <int bits> DEVICE void load_subtile(uint4 &low, uint4 &high, const u8 *at, int lane) {
    if constexpr (bits == 4) {
        const uint2 eights = load_shared_8(at), groups = load_shared_8(at + (32 - lane + lane / 4) * TileLayout<4>::LANE);
        low = widen_int4(eights.x, groups.x), high = widen_int4(eights.y, groups.y);
    } else {
        const uint4 first = load_shared_16(at);
        low = bits == 8 ? widen_fp8(first.x, first.y) : first;
        high = bits == 8 ? widen_fp8(first.z, first.w) : load_shared_16(at + TileLayout<bits>::SUBTILE / 2);
    }
}

// Accumulators of a warp: one per subtile, or two for a single subtile, used alternately, because an MMA waits for the
// previous one on the same accumulator.
typedef float Sums[2][ROW_TILES][4];

// One stage of the ring buffer times the input from block `begin` on.
template <class L, int bits, int begin>
DEVICE void mma_stage(Sums &acc, ThreadState &state, const uint4 (&x)[L::BLOCKS][ROW_TILES]) {
    constexpr int MAX_BLOCKS = TileLayout<bits>::BLOCKS_PER_STAGE,
                  count = L::BLOCKS - begin < MAX_BLOCKS ? L::BLOCKS - begin : MAX_BLOCKS;
    const int stage = state.stages_used % STAGES;
    barrier_wait(&state.shared.stage_full[stage], state.stages_used / STAGES % 2);
    const u8 *from = state.shared.ring[stage] + state.warp * TileLayout<bits>::BLOCK + state.lane * TileLayout<bits>::LANE;
#pragma unroll
    for (int block = 0; block < count; ++block, from += TileLayout<bits>::ALL_WARPS)
#pragma unroll
        for (int subtile = 0; subtile < CLUSTER; ++subtile) {
            uint4 low, high;
            load_subtile<bits>(low, high, from + subtile * TileLayout<bits>::SUBTILE, state.lane);
            mma_block(acc[CLUSTER == 1 ? block % 2 : subtile], low, high, x[begin + block]);
        }
    sync_warp();
    if (state.lane == 0) barrier_arrive(&state.shared.stage_free[stage]);
    ++state.stages_used;
    if constexpr (begin + MAX_BLOCKS < L::BLOCKS) mma_stage<L, bits, begin + MAX_BLOCKS>(acc, state, x);
}

// A tile times the input, over one range.
template <class L, int bits>
DEVICE void mma_tile_range(Sums &acc, ThreadState &state, const uint4 (&x)[L::BLOCKS][ROW_TILES]) {
    mma_stage<L, bits, 0>(acc, state, x);
#pragma unroll
    for (int tile = 0; tile < ROW_TILES && CLUSTER == 1; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[0][tile][i] += acc[1][tile][i];
}

// Store a warp's sums in shared memory once the epilogue has released the buffer.
DEVICE void store_sums(ThreadState &state, const Sums &acc) {
    if (state.turn > 0) barrier_wait(&state.shared.sums_free, (state.turn - 1) % 2);
    ++state.turn;
    float *mine = state.shared.sums[state.warp] + state.lane / 4;
#pragma unroll
    for (int subtile = 0; subtile < CLUSTER; ++subtile)
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile) {
            float *at = mine + subtile * SUBTILE_SUMS + (tile * 8 + state.lane % 4 * 2) * SUM_STRIDE;
            at[0] = acc[subtile][tile][0], at[SUM_STRIDE] = acc[subtile][tile][1];
            at[8] = acc[subtile][tile][2], at[SUM_STRIDE + 8] = acc[subtile][tile][3];
        }
    sync_warp();
    if (state.lane == 0) barrier_arrive(&state.shared.sums_ready);
}

// Add B (A x) for tile `at` of this CTA.
template <class L> DEVICE void add_adapter(Sums &acc, const ThreadState &state, int at) {
    const u8 *b = state.shared.b + b_begin<L>() + at * (CLUSTER * RANK_BLOCKS * 1024) + state.lane * 16;
#pragma unroll
    for (int block = 0; block < RANK_BLOCKS; ++block) {
        uint4 low[ROW_TILES];
#pragma unroll
        for (int at = 0; at < ROW_TILES; ++at)
            low[at] = load_shared_16(
                (const u8 *)&state.shared.ax[at * 8 + state.lane / 4][block * BLOCK + state.lane % 4 * 8]);
#pragma unroll
        for (int subtile = 0; subtile < CLUSTER; ++subtile) {
            const u8 *from = b + (subtile * RANK_BLOCKS + block) * 1024;
            mma_block(acc[subtile], load_shared_16(from), load_shared_16(from + 512), low);
        }
    }
}

template <class L> DEVICE void mma_tile(ThreadState &state, const uint4 (&x)[L::BLOCKS][ROW_TILES], int tile) {
    Sums acc = {};
    if (A_BITS != BITS && tile < 0) mma_tile_range<L, A_BITS>(acc, state, x);
    else mma_tile_range<L, BITS>(acc, state, x);
    if (RANK > 0 && tile >= 0 && state.warp == MMA_WARPS - 1) {
        if (tile == 0) barrier_wait(&state.shared.ax_ready, state.ax_turns++ % 2);
        add_adapter<L>(acc, state, tile);
    }
    store_sums(state, acc);
}

// All tiles of this CTA, range by range, with the input in registers.
template <class L> DEVICE void mma_ranges(ThreadState &state, const u16 *input) {
    if (first_range<L>() >= L::RANGES || num_tiles<L>() == 0) return;
#pragma unroll 1
    for (int range = first_range<L>(); range < first_range<L>() + L::CTA_RANGES; ++range) {
        uint4 x[L::BLOCKS][ROW_TILES];
        const int begin = (range * MMA_WARPS + state.warp) * L::BLOCKS;
        if (L::KIND == QKV && !state.args.has_layer) load_rows(x, state, input, L::K_DIM, begin);
        else poll_input(x, state, input, begin);
#pragma unroll 1
        for (int tile = -RANK_TILES; tile < num_tiles<L>(); ++tile) mma_tile<L>(state, x, tile);
    }
}

// ---- epilogue: sums

// An epilogue thread owns PER_THREAD consecutive outputs of a subtile, from `output` on, of one row. Rows that are read
// together are four apart, which avoids bank conflicts.
struct Epilogue {
    ThreadState state;
    const int row, output;
    float inv_rms;  // 1 / RMS of the row
    int position, slot;  // of the row
};

DEVICE int row_of(int thread) {
    const int mate = thread / ROW_THREADS;
    if (ROWS == 16) return mate / 8 * 8 + mate % 8 / 4 * 2 + mate % 4 / 2 + mate % 2 * 4;
    return mate / 8 * 8 + mate % 8 / 2 + mate % 2 * 4;
}

// Sum a subtile over the MMA warps, in ascending order.
DEVICE void sum_warps(float (&total)[PER_THREAD], const Epilogue &epi, int subtile) {
    const float *at = epi.state.shared.sums[0] + subtile * SUBTILE_SUMS + epi.row * SUM_STRIDE + epi.output;
    load_shared_floats(total, at);
#pragma unroll
    for (int warp = 1; warp < MMA_WARPS; ++warp) {
        float more[PER_THREAD];
        load_shared_floats(more, at + warp * WARP_SUMS);
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) total[i] += more[i];
    }
}

// Sum over the threads of a row, neighbours first.
DEVICE float sum_row(float value) {
#pragma unroll
    for (int mask = 1; mask < ROW_THREADS; mask *= 2) value += shuffle_xor(value, mask);
    return value;
}

// Sum of squares of a row of a subtile, pairwise, in an order that does not depend on PER_THREAD.
DEVICE float sum_squares(const float (&values)[PER_THREAD]) {
    float qkv_squares[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) qkv_squares[i] = rounded_square(values[i]);
#pragma unroll
    for (int apart = 1; apart < PER_THREAD; apart *= 2)
#pragma unroll
        for (int i = 0; i < PER_THREAD; i += 2 * apart) qkv_squares[i] += qkv_squares[i + apart];
    return sum_row(qkv_squares[0]);
}

DEVICE void wait_sums(ThreadState &state) { barrier_wait(&state.shared.sums_ready, state.turn++ % 2); }

DEVICE void release_sums(const ThreadState &state) {
    sync_warp();
    if (state.lane == 0) barrier_arrive(&state.shared.sums_free);
}

// Store A x; zero for rows without the adapter.
DEVICE void store_ax(Epilogue &epi) {
    Shared &shared = epi.state.shared;
#pragma unroll 1
    for (int tile = 0; tile < RANK_TILES; ++tile) {
        wait_sums(epi.state);
        const bool is_canvas = epi.state.args.gate[epi.row];
#pragma unroll
        for (int subtile = 0; subtile < CLUSTER; ++subtile) {
            float sum[PER_THREAD];
            sum_warps(sum, epi, subtile);
#pragma unroll
            for (int i = 0; i < PER_THREAD; ++i)
                shared.ax[epi.row][(tile * CLUSTER + subtile) * 16 + epi.output + i] =
                    round_to_input(is_canvas ? sum[i] : 0.0f);
        }
        release_sums(epi.state);
    }
    if (RANK > 0 && epi.state.lane == 0) barrier_arrive(&shared.ax_ready);
}

// After the last store of all epilogue threads: increment a counter. Consumers still poll the data itself.
DEVICE void signal_done(const ThreadState &state, int *counter) {
    sync_epilogue();
    if (state.thread == 0) count(counter);
}

// ---- epilogue: what follows a linear

// silu(gate) * up. The first eight outputs of a subtile are gates, the others their ups.
DEVICE void finish_swiglu(const Epilogue &epi, const float (&sum)[PER_THREAD], int subtile) {
    u16 bits[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const float mine = sum[i] * scale_of<GateUp>(epi.state, subtile, epi.output + i) * epi.inv_rms;
        const float up = shuffle_xor(mine, ROW_THREADS / 2);
        bits[i] = to_input(divide(mine, 1.0f + exponential(-mine)) * up);
    }
    if (epi.output < 8) store_relaxed(epi.state.args.ffn + input_at(epi.row, subtile * 8 + epi.output), bits);
}

// qkv before norm and RoPE, rounded as the output of a linear layer.
DEVICE void round_qkv(float (&raw)[PER_THREAD], const Epilogue &epi, const float (&sum)[PER_THREAD], int subtile) {
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        raw[i] = sum[i] * scale_of<Qkv>(epi.state, subtile, epi.output + i) * epi.inv_rms;
        if (BIAS) raw[i] += term_of<Qkv>(epi.state, subtile, epi.output + i);
        raw[i] = from_bf16(to_bf16(raw[i]));
    }
}

// RoPE angles of a thread's columns.
struct Angles {
    float cosine[PER_THREAD], sine[PER_THREAD];
};

DEVICE void read_angles(Angles &angles, const Epilogue &epi, int column) {
    const float *from = epi.state.args.angles + (long long)epi.position * HEAD_DIM + column % (HEAD_DIM / 2);
    load_cg_floats(angles.cosine, from);
    load_cg_floats(angles.sine, from + HEAD_DIM / 2);
}

// Whether output `at` is a query or a key, which have RoPE and a head norm.
DEVICE bool has_rope(int at) { return at / HEAD_DIM < HEADS + KV_HEADS; }

DEVICE void rotate(float (&values)[PER_THREAD], const Epilogue &epi, const Angles &angles, int at) {
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const float other = shuffle_xor(values[i], ROW_THREADS / 2);
        const float rotated = values[i] * angles.cosine[i] + (epi.output < 8 ? -other : other) * angles.sine[i];
        values[i] = has_rope(at) ? rotated : values[i];
    }
}

// Store to qkv; keys and values also to the cache.
DEVICE void store_qkv(const Epilogue &epi, const float (&values)[PER_THREAD], int at) {
    const LayerArgs &args = epi.state.args;
    const int head = at / HEAD_DIM;
    u16 bits[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) bits[i] = to_bf16(values[i]);
    store_halves(args.qkv + epi.row * QKV_DIM + at, bits);
    if (head < HEADS || epi.slot < 0) return;
    u16 *cache = has_rope(at) ? args.k_cache : args.v_cache;
    store_halves(cache + ((long long)epi.slot * KV_HEADS + (head - HEADS) % KV_HEADS) * HEAD_DIM + at % HEAD_DIM, bits);
}

// ---- epilogue: head norms, over subtiles of several CTAs

constexpr int HEAD_SUBTILES = HEAD_DIM / 16;
constexpr int MAX_QKV_TILES = Qkv::MAX_TILES;  // subtiles of this CTA

DEVICE float *head_squares_of(const Epilogue &epi, int subtile) {
    return epi.state.args.head_squares + (subtile / HEAD_SUBTILES * ROWS + epi.row) * HEAD_SUBTILES;
}

// Publish the sum of squares of a subtile.
DEVICE void publish_square(const Epilogue &epi, const float (&raw)[PER_THREAD], int subtile) {
    const float square = sum_squares(raw);
    if (epi.output == 0) store_relaxed(head_squares_of(epi, subtile) + subtile % HEAD_SUBTILES, square);
}

// Poll the squares of all heads that this CTA has subtiles of. Those of values are read too and ignored.
DEVICE void poll_squares(float (&qkv_squares)[MAX_QKV_TILES][HEAD_SUBTILES / 4][4], const Epilogue &epi, int first,
                         int count) {
    u32 max_seen;
    do {
        max_seen = 0;
#pragma unroll
        for (int at = 0; at < MAX_QKV_TILES * (HEAD_SUBTILES / 4); ++at) {
            const int subtile = at / (HEAD_SUBTILES / 4), four = at % (HEAD_SUBTILES / 4);
            if (subtile < count)
                load_relaxed(qkv_squares[subtile][four], head_squares_of(epi, first + subtile * CLUSTER) + four * 4);
        }
#pragma unroll
        for (int at = 0; at < MAX_QKV_TILES * HEAD_SUBTILES; ++at) {
            const int subtile = at / HEAD_SUBTILES;
            if (subtile < count)
                max_seen = max_word(max_seen, word_of(qkv_squares[subtile][at % HEAD_SUBTILES / 4][at % 4]));
        }
    } while (warp_any(max_seen == SENTINEL));
}

// Finish this CTA's subtiles once the squares of their heads have arrived. RoPE is already applied: it commutes with the
// division, which is the same for a whole head.
DEVICE void finish_heads(const Epilogue &epi) {
    const ThreadState &state = epi.state;
    const int first = first_subtile<Qkv>() + cluster_rank(), count = num_tiles<Qkv>();
    float qkv_squares[MAX_QKV_TILES][HEAD_SUBTILES / 4][4];
    poll_squares(qkv_squares, epi, first, count);
#pragma unroll
    for (int at = 0; at < MAX_QKV_TILES && at < count; ++at) {
        const int output = output_of<Qkv>(first + at * CLUSTER, epi.output);
        float values[PER_THREAD], square = 0.0f;
        load_shared_floats(values, state.shared.kept[at][0] + state.thread * PER_THREAD);
#pragma unroll
        for (int of = 0; of < HEAD_SUBTILES; ++of) square += qkv_squares[at][of / 4][of % 4];
        const float inv_rms = inverse_root(square / HEAD_DIM + state.args.head_eps);
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) values[i] *= has_rope(output) ? inv_rms : 1.0f;
        store_qkv(epi, values, output);
    }
}

// Poll and sum every eighth group of four squares of a row, from group `first` on.
DEVICE float poll_and_sum(const float *from, int first) {
    constexpr int FOURS = DIM / 64, STEPS = (FOURS + 7) / 8;
    float sum;
    u32 max_seen;
    do {
        max_seen = 0, sum = 0.0f;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int place = step * 8 + first;
            float four[4];
            load_relaxed(four, from + (place < FOURS ? place : 0) * 4);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                max_seen = max_word(max_seen, word_of(four[j]));
                sum += place < FOURS ? four[j] : 0.0f;
            }
        }
    } while (warp_any(max_seen == SENTINEL));
    return sum;
}

// 1 / RMS from the squares per subtile of the previous linear: eight partial sums, for rows of eight or of four threads.
DEVICE void compute_inv_rms(Epilogue &epi, const float *qkv_squares, float eps) {
    constexpr int SUMS_EACH = 8 / ROW_THREADS;
    float sums[SUMS_EACH];
#pragma unroll
    for (int sum = 0; sum < SUMS_EACH; ++sum)
        sums[sum] = sum_row(poll_and_sum(qkv_squares + epi.row * (DIM / 16),
                                         sum * ROW_THREADS + epi.state.thread % ROW_THREADS));
    epi.inv_rms = inverse_root((SUMS_EACH == 1 ? sums[0] : sums[0] + sums[SUMS_EACH - 1]) / DIM + eps);
}

// The next linear's input, and its squares.
template <class L> DEVICE u16 *next_input(const ThreadState &state, int row, int at) {
    return (L::KIND == O ? state.args.ffn_input : state.args.qkv_input) + input_at(row, at);
}
template <class L> DEVICE float *next_squares(const ThreadState &state, int row, int subtile) {
    return (L::KIND == O ? state.args.ffn_squares : state.args.qkv_squares) + row * (DIM / 16) + subtile;
}

// Add to the residual stream, rounded before and after the addition as in the eager network.
template <class L> DEVICE u16 add_to_stream(const ThreadState &state, float sum, u16 before, int subtile, int output) {
    return to_bf16(from_bf16(to_bf16(sum * scale_of<L>(state, subtile, output))) + from_bf16(before));
}

// Add to the stream, and publish the next norm's input and squares.
template <class L>
DEVICE void finish_add(const Epilogue &epi, const float (&sum)[PER_THREAD], const u16 (&before)[PER_THREAD],
                       int subtile) {
    const LayerArgs &args = epi.state.args;
    const int at = epi.row * DIM + subtile * 16 + epi.output;
    u16 bits[PER_THREAD], qkv_input[PER_THREAD];
    float values[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        bits[i] = add_to_stream<L>(epi.state, sum[i], before[i], subtile, epi.output + i);
        values[i] = from_bf16(bits[i]);
        qkv_input[i] = to_input(values[i] * term_of<L>(epi.state, subtile, epi.output + i));
    }
    store_halves(args.stream + at, bits);
    store_relaxed(next_input<L>(epi.state, epi.row, subtile * 16 + epi.output), qkv_input);
    const float square = sum_squares(values);
    if (epi.output == 0) store_relaxed(next_squares<L>(epi.state, epi.row, subtile), square);
}

// ---- epilogue of a linear within a cluster

// A thread's outputs of the subtile that its CTA finishes: sums, and further operands.
struct Outputs {
    float sum[PER_THREAD];
    Angles angles;
    u16 gain[PER_THREAD], before[PER_THREAD];
};

// Load the operands while the MMA is still running.
template <class L> DEVICE void load_operands(Outputs &out, const Epilogue &epi, int subtile) {
    const int output = output_of<L>(subtile, epi.output);
    if (!L::IS_WIDE) load_cg_halves(out.before, epi.state.args.stream + epi.row * DIM + output);
    if (L::KIND == QKV) read_angles(out.angles, epi, output);
    if (L::KIND == QKV && HEAD_NORM)
        load_cg_halves(out.gain, (output < Q_DIM ? epi.state.args.q_gain : epi.state.args.k_gain) + output % HEAD_DIM);
}

// Accumulate a subtile over this CTA's ranges.
template <class L>
DEVICE void accumulate_ranges(float (&total)[PER_THREAD], const Epilogue &epi, int at, int subtile, int range) {
    float *kept = epi.state.shared.kept[L::CTA_RANGES > 1 ? at : 0][subtile] + epi.state.thread * PER_THREAD;
    sum_warps(total, epi, subtile);
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        if (range > 0) total[i] = kept[i] + total[i];
        if (range < L::CTA_RANGES - 1) kept[i] = total[i];
    }
}

// Sums of tile `at` over one range: keep those of this CTA's subtile, send the others to the peer.
template <class L> DEVICE void gather_tile(Outputs &out, Epilogue &epi, int at, int range) {
    Shared &shared = epi.state.shared;
    const int other = cluster_rank() ^ 1;
    const bool is_last = range == L::CTA_RANGES - 1;
    if (is_last) load_operands<L>(out, epi, (first_tile<L>() + at) * CLUSTER + cluster_rank());
    wait_sums(epi.state);
    if (CLUSTER > 1) {
        float total[PER_THREAD];
        accumulate_ranges<L>(total, epi, at, other, range);
        if (is_last)
            store_to_peer(shared.peer_sums[at] + epi.state.thread * PER_THREAD, total, &shared.peer_ready[L::KIND][at],
                          other);
    }
    accumulate_ranges<L>(out.sum, epi, at, cluster_rank(), range);
    release_sums(epi.state);
}

// Finish this CTA's subtile of tile `at` once the peer's sums have arrived.
template <class L> DEVICE void finish_subtile(const Epilogue &epi, Outputs &out, int at) {
    const int subtile = (first_tile<L>() + at) * CLUSTER + cluster_rank(), place = epi.state.thread * PER_THREAD;
    Shared &shared = epi.state.shared;
    if (CLUSTER > 1) {
        float more[PER_THREAD];
        barrier_wait(&shared.peer_ready[L::KIND][at], 0);
        load_shared_floats(more, shared.peer_sums[at] + place);
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) out.sum[i] += more[i];
    }
    if constexpr (!L::IS_WIDE) {
        finish_add<L>(epi, out.sum, out.before, subtile);
    } else if constexpr (L::KIND == GATE_UP) {
        finish_swiglu(epi, out.sum, subtile);
    } else {
        const int output = output_of<L>(subtile, epi.output);
        float values[PER_THREAD];
        round_qkv(values, epi, out.sum, subtile);
        if (HEAD_NORM) publish_square(epi, values, subtile);
#pragma unroll
        for (int i = 0; i < PER_THREAD && HEAD_NORM; ++i)
            values[i] *= has_rope(output) ? from_bf16(out.gain[i]) : 1.0f;
        rotate(values, epi, out.angles, output);
#pragma unroll
        for (int i = 0; i < PER_THREAD && HEAD_NORM; ++i) shared.kept[at][0][place + i] = values[i];
        if (!HEAD_NORM) store_qkv(epi, values, output);
    }
}

// A subtile is finished after the next tile's sums are gathered, so the CTAs of a cluster may be one tile apart.
template <class L> DEVICE void finish_in_cluster(Epilogue &epi, const float *qkv_squares, float eps) {
    const int count = num_tiles<L>();
    if (L::IS_WIDE) compute_inv_rms(epi, qkv_squares, eps);
#pragma unroll 1
    for (int range = 0; range < L::CTA_RANGES && count > 0; ++range) {
        const bool is_last = range == L::CTA_RANGES - 1;
        Outputs out = {};
        store_ax(epi);
#pragma unroll 1
        for (int at = 0; at <= count; ++at) {
            Outputs next = {};
            if (at < count) gather_tile<L>(next, epi, at, range);
            if (is_last && at > 0) finish_subtile<L>(epi, out, at - 1);
            out = next;
        }
    }
    if constexpr (L::KIND == QKV && HEAD_NORM) finish_heads(epi);
    if (L::KIND != QKV) signal_done(epi.state, epi.state.args.counters + L::KIND);
    if (L::KIND == O && epi.state.thread == 0) fence_gpu();  // the stream, before this CTA counts gate and up as finished
}

// ---- epilogue of a linear with split K

// Publish the sums of this CTA's range.
template <class L> DEVICE void publish_partials(Epilogue &epi) {
    const int range = first_range<L>();
    if (range >= L::RANGES) return;
    if (num_tiles<L>() > 0) store_ax(epi);
#pragma unroll 1
    for (int tile = first_tile<L>(); tile < end_tile<L>(); ++tile) {
        wait_sums(epi.state);
#pragma unroll
        for (int subtile = 0; subtile < CLUSTER; ++subtile) {
            const long long place = ((long long)(tile * CLUSTER + subtile) * L::RANGES + range) * ROWS + epi.row;
            float sum[PER_THREAD];
            sum_warps(sum, epi, subtile);
            store_relaxed(epi.state.args.sums + place * 16 + epi.output, sum);
        }
        release_sums(epi.state);
    }
}

// Poll the sums of two outputs over all ranges, then reset them to the sentinel.
template <class L> DEVICE void poll_partials(float (&each)[L::RANGES][2], float *from) {
    u32 max_seen;
    do {
        max_seen = 0;
#pragma unroll
        for (int range = 0; range < L::RANGES; ++range) load_relaxed(each[range], from + range * (16 * ROWS));
#pragma unroll
        for (int at = 0; at < L::RANGES * 2; ++at) max_seen = max_word(max_seen, word_of(each[at / 2][at % 2]));
    } while (max_seen == SENTINEL);
#pragma unroll
    for (int range = 0; range < L::RANGES; ++range) store_8(from + range * (16 * ROWS), SENTINEL);
}

// Reduce and finish two outputs.
template <class L> DEVICE void reduce_outputs(const ThreadState &state, int subtile, int row) {
    const int output = state.thread % 8 * 2, at = row * DIM + subtile * 16 + output;
    float each[L::RANGES][2], sum[2] = {}, values[2];
    u16 before[2], bits[2], qkv_input[2];
    load_cg_halves(before, state.args.stream + at);
    poll_partials<L>(each, state.args.sums + ((long long)subtile * L::RANGES * ROWS + row) * 16 + output);
    sync_warp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int range = 0; range < L::RANGES; ++range) sum[i] += each[range][i];
        bits[i] = add_to_stream<L>(state, sum[i], before[i], subtile, output + i);
        values[i] = from_bf16(bits[i]);
        qkv_input[i] = to_input(values[i] * term_of<L>(state, subtile, output + i));
    }
    store_halves(state.args.stream + at, bits);
    store_relaxed(next_input<L>(state, row, subtile * 16 + output), qkv_input);
    float square = rounded_square(values[0]) + rounded_square(values[1]);
#pragma unroll
    for (int mask = 1; mask < 8; mask *= 2) square += shuffle_xor(square, mask);
    if (output == 0) store_relaxed(next_squares<L>(state, row, subtile), square);
}

// Reduce this CTA's share of the subtiles. The MMA warps do it: they are the most, and are idle then.
template <class L> DEVICE void reduce_split_k(ThreadState &state) {
    const int range = first_range<L>();
    if (range >= L::RANGES) return;
#pragma unroll 2
    for (int subtile = first_subtile<L>() + range; subtile < end_subtile<L>(); subtile += L::RANGES)
#pragma unroll
        for (int row = state.thread / 8; row < ROWS; row += MMA_WARPS * 4) reduce_outputs<L>(state, subtile, row);
    sync_mma_warps();  // polling for the next input would slow down its producers
    if (L::KIND == O && state.thread == 0) fence_gpu();  // as in finish_in_cluster
    if (state.thread == 0) count(state.args.counters + L::KIND);
}

// ---- main

// Wait until all CTAs have finished a linear.
template <class L> DEVICE void wait_done(const ThreadState &state) {
    if (state.thread == 0)
        while (load_acquire(state.args.counters + L::KIND) < L::ACTIVE_CTAS) {}
    sync_epilogue();
}

template <class L> DEVICE void finish_linear(Epilogue &epi, const float *qkv_squares = nullptr, float eps = 0.0f) {
    if constexpr (L::IS_SPLIT_K) publish_partials<L>(epi);
    else finish_in_cluster<L>(epi, qkv_squares, eps);
}

template <class L> DEVICE void mma_linear(ThreadState &state, const u16 *input) {
    mma_ranges<L>(state, input);
    if constexpr (L::IS_SPLIT_K) {
        barrier_wait(L::KIND == DOWN ? &state.shared.stream_ready : &state.shared.constants_ready, 0);
        reduce_split_k<L>(state);
    }
}

DEVICE void run_mma_warps(ThreadState &state) {
    if (state.args.has_layer) {
        mma_linear<Output>(state, state.args.attended);
        mma_linear<GateUp>(state, state.args.ffn_input);
        mma_linear<Down>(state, state.args.ffn);
    }
    if (state.args.has_qkv) mma_linear<Qkv>(state, state.args.qkv_input);
}

// Reset the exchange buffers of the next launch.
DEVICE void reset_next_exchange(const ThreadState &state) {
#pragma unroll 1
    for (int at = (cta_index() * EPILOGUE_WARPS * 32 + state.thread) * 16; at < state.args.exchange_bytes;
         at += NUM_CTAS * EPILOGUE_WARPS * 32 * 16)
        store_16(state.args.next_exchange + at, SENTINEL);
}

// Waiting for a linear also guarantees that the peer may overwrite the buffer of its sums.
DEVICE void run_epilogue(Epilogue &epi) {
    const LayerArgs &args = epi.state.args;
    reset_next_exchange(epi.state);
    barrier_wait(&epi.state.shared.constants_ready, 0);
    if (args.has_layer) {
        finish_linear<Output>(epi);
        wait_done<Output>(epi.state);
        finish_linear<GateUp>(epi, args.ffn_squares, args.ffn_eps);
        wait_done<GateUp>(epi.state);
        if (epi.state.thread == 0) barrier_arrive(&epi.state.shared.stream_ready);
        finish_linear<Down>(epi);
        if (args.has_qkv) wait_done<Down>(epi.state);
    }
    pdl_launch();
    if (!args.has_qkv) return;
    epi.position = args.positions[epi.row];
    epi.slot = args.slots[epi.row];
    finish_linear<Qkv>(epi, args.qkv_squares, args.next_eps);
}

// The ring buffer's barriers are initialised by the load warp, which uses them first, all others by a prefetch warp.
DEVICE void init_ring(const ThreadState &state) {
    if (state.lane > 0) return;
#pragma unroll 1
    for (int stage = 0; stage < STAGES; ++stage) {
        barrier_init(&state.shared.stage_full[stage], 1);
        barrier_init(&state.shared.stage_free[stage], MMA_WARPS);
    }
    fence_barrier_init();
}

DEVICE void init_barriers(const ThreadState &state) {
    if (state.lane == 0) {
        barrier_init(&state.shared.sums_ready, MMA_WARPS);
        barrier_init(&state.shared.sums_free, EPILOGUE_WARPS);
        barrier_init(&state.shared.ax_ready, EPILOGUE_WARPS);
        barrier_init(&state.shared.constants_ready, PREFETCH_WARPS);
        barrier_init(&state.shared.stream_ready, 1);
    }
    if (state.lane == 0 && CLUSTER > 1)
#pragma unroll 1
        for (int at = 0; at < NUM_LINEARS * PEER_TILES; ++at) {
            u64 *peer_ready = &state.shared.peer_ready[at / PEER_TILES][at % PEER_TILES];
            barrier_init(peer_ready, 1);
            barrier_expect(peer_ready, 16 * ROWS * sizeof(float));
        }
    fence_barrier_init();
}

// Role of the prefetch warps.
DEVICE void run_prefetch_warp(const ThreadState &state) {
    decrease_registers<LOAD_REGISTERS>();
    if (state.warp == FIRST_PREFETCH_WARP) init_barriers(state);
    sync_warp();
    cluster_arrive();
    cluster_wait();
    copy_all_constants(ThreadState{state.args, state.shared, state.thread - 32 * FIRST_PREFETCH_WARP, state.warp,
                                 state.lane, 0, 0, 0});
    if (PREFETCHES_KV && state.args.has_qkv) prefetch_kv(state.args, state.thread - 32 * FIRST_PREFETCH_WARP);
}

// First step of MMA and epilogue warps. Little runs before the merge, which is on the critical path: a CTA starts when
// attention has left its SM.
DEVICE void merge_and_sync(const ThreadState &state) {
    cluster_arrive();
    if (state.args.has_layer) merge(state);
    else pdl_wait();
    sync_merge_warps();
    cluster_wait();
}

KERNEL(CLUSTER, THREADS) layer_fused(const GRID_CONSTANT LayerArgs args) {
    Shared &shared = *(Shared *)shared_memory();
    const int thread = thread_index(), warp = thread / 32;
    ThreadState state{args, shared, thread, warp, thread % 32, 0, 0, 0};
    if (warp > LOAD_WARP) {
        run_prefetch_warp(state);
        return;
    }
    if (warp == LOAD_WARP) {
        init_ring(state);
        sync_warp();
        cluster_arrive();
        decrease_registers<LOAD_REGISTERS>();
        if (state.lane == 0) load_weights(state);
        return;
    }
    merge_and_sync(state);
    if (warp >= FIRST_EPILOGUE_WARP) {
        decrease_registers<EPILOGUE_REGISTERS>();
        const int mine = thread - FIRST_EPILOGUE_WARP * 32;
        Epilogue epi{ThreadState{args, shared, mine, warp, state.lane, 0, 0, 0}, row_of(mine),
                     mine % ROW_THREADS * PER_THREAD, 0.0f, 0, 0};
        run_epilogue(epi);
    } else {
        increase_registers<MMA_REGISTERS>();
        if (warp < MMA_WARPS) run_mma_warps(state);
    }
}
