#include "core/launch_graph.h"

#ifdef HEBB_HAVE_CUDA
#include "core/cuda_side.h"
#endif

namespace hebb {

struct LaunchGraph::State {
#ifdef HEBB_HAVE_CUDA
  bool is_known = false;  // what the work needs: kernels are loaded, products have their algorithms
  int64_t upload_bytes = 0;
  std::unique_ptr<cuda::Graph> graph;
#endif
};

LaunchGraph::LaunchGraph() : state_(std::make_unique<State>()) {}
LaunchGraph::~LaunchGraph() = default;
LaunchGraph::LaunchGraph(LaunchGraph&&) noexcept = default;
LaunchGraph& LaunchGraph::operator=(LaunchGraph&&) noexcept = default;

#ifdef HEBB_HAVE_CUDA
bool LaunchGraph::is_recorded() const { return state_->graph != nullptr; }

void LaunchGraph::run(Stream& stream, const std::function<void()>& work) {
  State& s = *state_;
  if (stream.device != DeviceKind::cuda) { return work(); }
  if (!s.is_known) {
    const int64_t before = cuda::device_counts().uploaded_bytes;
    work();
    s.upload_bytes = cuda::device_counts().uploaded_bytes - before;
    s.is_known = true;
    return;
  }
  if (s.graph == nullptr) { s.graph = std::make_unique<cuda::Graph>(stream, s.upload_bytes, work); }
  s.graph->launch(stream);
}

bool is_being_recorded(Stream& stream) { return stream.device == DeviceKind::cuda && cuda::is_recording(stream); }
#else
bool LaunchGraph::is_recorded() const { return false; }
void LaunchGraph::run(Stream&, const std::function<void()>& work) { work(); }
bool is_being_recorded(Stream&) { return false; }
#endif

}  // namespace hebb
