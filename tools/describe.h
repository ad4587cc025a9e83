#pragma once
#include <string>

namespace hebb {

/// What a file or folder holds, as text for a terminal: a safetensors file or its index, a shard or
/// a pattern of shards, a document index, a data set, a tokenizer, a checkpoint, a run folder. The
/// kind is found from the content. With `statistics`, tensors get mean, deviation, extremes and the
/// number of values that are not finite.
/// Errors: DataError for anything else; the errors of opening each kind.
std::string describe_path(const std::string& path, bool statistics);

}  // namespace hebb
