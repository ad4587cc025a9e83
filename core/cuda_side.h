#pragma once
// Apart from core/cuda_device.h, which every kernel includes.
#include "core/cuda_device.h"

namespace hebb::HEBB_DEVICE {

/// A stream like those of create_stream(), without memory of its own: for copies, collectives, and kernels that take no
/// scratch from their stream. destroy_stream() ends it.
Stream create_side_stream();
/// Whether a Graph records the stream now. Events that are recorded then (Event::record) happen in each launch of the
/// graph, and can be waited for after it. Waits that are recorded (Event::make_wait) are for the event as it was
/// recorded last before each launch, on another stream.
bool is_recording(Stream& stream);

}  // namespace hebb::HEBB_DEVICE
