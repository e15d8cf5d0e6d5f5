// layer_fused.cu on a processor without a GPU: one call for a launch.
#define EMULATED
#include "layer_fused.cu"

static const Between *given;

extern "C" void emulate(const Between *args) {
    given = args;
    run_grid([] { layer_fused(*given); }, PROGRAMS, TEAM, THREADS, sizeof(Shared));
}

extern "C" void make_lazy(int warp) { lazy_warp = warp; }
extern "C" int shared_size() { return sizeof(Shared); }
extern "C" int num_counters() { return NUM_COUNTERS; }
