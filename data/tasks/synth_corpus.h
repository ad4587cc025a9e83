#pragma once
#include <cstdint>
#include <string>

namespace hebb {

/// Document d of the built-in corpus, from stream (seed, "synth", d): sentences over a few topic
/// words, and two facts that occur somewhere and again at the end; ends with a newline, about
/// 1,000 bytes (docs/verbs/data.md, synth).
std::string synth_document(uint64_t seed, uint64_t d);

}  // namespace hebb
