#pragma once
#include "inspect/trace.h"

namespace hebb {

/// inputs, targets, doc_ids [B, T] from a safetensors file (docs/verbs/trace.md). Throws DataError for a
/// missing `inputs`, shapes that differ, or document ids that return within a row.
TraceInput read_trace_input(const std::string& path);

/// The decisions of --force: every integer tensor of the file.
std::map<std::string, Inspector::Record> read_forced(const std::string& path);

/// Writes logits, loss, grad.NAME, after.NAME and the inside records; reals as F64 (fp64) or F32,
/// integers as I32.
void write_trace(const std::string& path, const TraceOutput& output, bool fp64);

}  // namespace hebb
