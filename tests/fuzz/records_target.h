#pragma once
// What the libFuzzer program for evaluation records runs, and the fast test of mutated ones. Nothing is thrown on any
// input unless a property is broken.
#include "data/tasks/records.h"
#include "tests/fuzz/targets.h"

namespace hebb::fuzz {

/// Refused or read.
template <class R> void record_file(const std::string& path) {
  try {
    read_records<R>(path);
  } catch (const DataError&) {}
}

inline void records(std::string_view bytes) {
  const MemoryFile memory(bytes);
  record_file<ChoiceRecord>(memory.path());
  record_file<PartialRecord>(memory.path());
  record_file<ClozeRecord>(memory.path());
  record_file<RollingRecord>(memory.path());
  record_file<GenerateRecord>(memory.path());
  record_file<AnswerRecord>(memory.path());
}

}  // namespace hebb::fuzz
