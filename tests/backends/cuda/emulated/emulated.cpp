// layer_fused.cu emulated on a CPU: one call per launch.
#define EMULATED
#include "layer_fused.cu"

static const LayerArgs *given;

extern "C" void emulate(const LayerArgs *args) {
    given = args;
    run_grid([] { layer_fused(*given); }, NUM_CTAS, CLUSTER, THREADS, sizeof(Shared));
}

extern "C" void delay_warp(int warp) { delayed_warp = warp; }
extern "C" int shared_size() { return sizeof(Shared); }
extern "C" int num_counters() { return NUM_COUNTERS; }
