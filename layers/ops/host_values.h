#pragma once
#include <vector>

#include "layers/layer.h"

namespace hebb {

/// A floating-point tensor as doubles on the host; zeros on the counting device.
std::vector<double> host_values(Stream& stream, const Tensor& tensor);
/// An i32 tensor on the host; zeros on the counting device.
std::vector<int32_t> host_integers(Stream& stream, const Tensor& tensor);

/// A tensor as `--inside` and statistics take it; `shape` replaces its own where given.
Inspector::Record record_of(Stream& stream, const Tensor& tensor, std::vector<int64_t> shape = {});
/// Adds it to the inspector's records, where the pass has such.
void record(Pass& pass, const std::string& name, const Tensor& tensor, std::vector<int64_t> shape = {});

/// The decisions that `hebb trace --force` gives for `name`; null where it gives none. Errors: DataError unless there
/// are `count`.
const std::vector<int64_t>* forced_decisions(const Pass& pass, const std::string& name, int64_t count);
/// Puts them into `to` i32, where there are any; returns whether there were. `what`: "forced slot". Errors: DataError
/// where one is not in [0, limit).
bool take_forced(Pass& pass, const Tensor& to, const std::string& name, const char* what, int64_t limit);

}  // namespace hebb
