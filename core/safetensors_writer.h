#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/safetensors.h"

namespace hebb {

/// Hands the bytes of a tensor to `take`, in order.
using ReadTensor = std::function<void(const NamedTensor& tensor, const TakeBytes& take)>;

/// write_safetensors() of tensors whose bytes come one tensor after the other, in the order of the file.
uint32_t write_safetensors(const fs::path& path, const std::vector<NamedTensor>& tensors,
                           const std::map<std::string, std::string>& metadata, const ReadTensor& read);

}  // namespace hebb
