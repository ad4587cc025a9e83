#include "core/device_reader.h"

#include <algorithm>

namespace hebb {

#ifdef HEBB_HAVE_CUDA
namespace cuda {
void* allocate_pinned(int64_t bytes);
void free_pinned(void* memory);
}  // namespace cuda
#endif

DeviceReader::DeviceReader(Stream& stream, int64_t buffer_bytes) : stream_(stream), buffer_bytes_(buffer_bytes) {}

#ifdef HEBB_HAVE_CUDA
DeviceReader::~DeviceReader() {
  if (buffer_ != nullptr) { cuda::free_pinned(buffer_); }
}
#else
DeviceReader::~DeviceReader() = default;
#endif

void DeviceReader::read(const Tensor& tensor, const TakeBytes& take) {
#ifdef HEBB_HAVE_CUDA
  if (stream_.device == DeviceKind::cuda) {
    if (buffer_ == nullptr) { buffer_ = static_cast<char*>(cuda::allocate_pinned(buffer_bytes_)); }
    for (int64_t begin = 0; begin < tensor.bytes(); begin += buffer_bytes_) {
      const int64_t size = std::min(buffer_bytes_, tensor.bytes() - begin);
      copy_to_host(stream_, buffer_, Tensor{static_cast<char*>(tensor.data) + begin, DType::u8, {size}});
      take(buffer_, static_cast<size_t>(size));
    }
    return;
  }
#endif
  take(tensor.data, static_cast<size_t>(tensor.bytes()));
}

}  // namespace hebb
