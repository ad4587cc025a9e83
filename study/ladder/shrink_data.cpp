#include "study/ladder/shrink_data.h"

#include <algorithm>
#include <cmath>

namespace hebb {
namespace {

constexpr int64_t kBytesVocabulary = 259;  // of the tokenizer "bytes"
constexpr int64_t kSmallestVocabulary = 64, kVocabularyMultiple = 8;

bool is_task(const Json& source) { return source.text_at("type") == "synthetic"; }

int64_t size_or(const Json& object, const char* key, int64_t otherwise) {
  const int64_t value = size_at(object, key);
  return value > 0 ? value : otherwise;
}

template <class Visit> void each_source(Json& data, Visit visit) {
  for (const char* key : {"sources", "validation"}) {
    if (Json* list = data.find(key); list != nullptr && list->is_array()) {
      for (Json& source : list->items()) { visit(source, std::string_view(key) == "validation"); }
    }
  }
}

void use_corpus(Json& source, const std::string& corpus, bool is_validation) {
  source.set("path", Json(corpus + (is_validation ? "/val_*.bin" : "")));
  source.set("format", Json("auto"));
  for (const char* key : {"split_token", "split"}) { source.set(key, Json()); }
}

/// The shortest row that a task makes.
int64_t shortest(const Json& task, int64_t sequence_length) {
  int64_t length = size_or(task, "length", sequence_length);
  if (const Json* lengths = task.find("lengths"); lengths != nullptr && lengths->is_array()) {
    for (const Json& l : lengths->items()) { length = std::min(length, l.as_int()); }
  }
  return length;
}

/// Words by the root of the lengths, so that rows still hold more pairs the longer they are; as many questions as fit
/// into the shortest row.
void shrink_recall(Json& task, double root, int64_t sequence_length) {
  const char* asked = task.text_at("task") == "icr_basic" ? "queries" : "copies";
  const int64_t length = shortest(task, sequence_length);
  for (int64_t word = scaled(size_at(task, "word"), root, 1, 1);; --word) {
    const int64_t fit = (length - 1) / (2 * (2 * word + 2));  // pairs in the context and again behind it
    if (fit >= 1 || word == 1) {
      set_size(task, "word", word);
      set_size(task, asked, std::clamp<int64_t>(fit, 1, size_at(task, asked)));
      return;
    }
  }
}

/// Vectors by the root of the lengths, and functions so that a row has as many examples of each as before.
void shrink_functions(Json& task, const ShrinkScale& scale) {
  const int64_t dim = size_at(task, "dim"), fewer = scaled(dim, std::sqrt(scale.lengths), 1, 1);
  const double examples = scale.lengths * static_cast<double>(2 * dim + 2) / static_cast<double>(2 * fewer + 2);
  set_size(task, "dim", fewer);
  set_size(task, "functions", scaled(size_at(task, "functions"), examples, 1, 1));
}

int64_t shrunken_vocabulary(int64_t vocabulary, const ShrinkScale& scale, int64_t least = kSmallestVocabulary) {
  return scaled(vocabulary, scale.width, kVocabularyMultiple, least);
}

void shrink_task(Json& task, int64_t sequence_length, int64_t vocabulary, const ShrinkScale& scale) {
  shrink_length(task, "length", scale);
  if (Json* lengths = task.find("lengths"); lengths != nullptr && lengths->is_array()) {
    for (Json& l : lengths->items()) { l = Json(scaled(l.as_int(), scale.lengths, 1, 1)); }
  }
  const std::string name = task.text_at("task");
  if (name == "icl") {
    shrink_functions(task, scale);
    return;
  }
  const int64_t old = size_or(task, "vocab", name == "mqar" ? 8192 : 10000);
  const int64_t least = name == "mqar" ? size_or(task, "length", sequence_length) + kVocabularyMultiple : 0;
  task.set("vocab", Json(std::min(vocabulary, shrunken_vocabulary(old, scale, std::max(kSmallestVocabulary, least)))));
  if (name == "mqar") {
    set_size(task, "pairs", scaled(size_at(task, "pairs"), scale.lengths, 1, 1));
  } else {
    shrink_recall(task, std::sqrt(scale.lengths), sequence_length);
  }
}

}  // namespace

bool uses_files(const Json& data) {
  bool uses = false;
  Json copy = data;
  each_source(copy, [&](const Json& source, bool) { uses |= !is_task(source); });
  return uses;
}

int64_t needed_document_tokens(const Json& data, int64_t sequence_length) {
  int64_t needed = 0;
  Json copy = data;
  each_source(copy, [&](Json& source, bool) {
    if (is_task(source)) { return; }
    const auto own = [&](const char* key) { return source.find(key) != nullptr && !source.at(key).is_null(); };
    const Json& packs = own("packing") ? source : data;
    const Json& limits = own("min_document_tokens") ? source : data;
    needed = std::max(needed, size_at(limits, "min_document_tokens"));
    if (packs.text_at("packing") == "document") { needed = std::max(needed, sequence_length + 1); }
  });
  return needed;
}

void shrink_data(Json& config, const ShrinkDataOptions& options) {
  Json &data = *config.find("data"), &model = *config.find("model");
  const int64_t sequence_length = size_at(config.at("train"), "sequence_length");
  bool has_text = false, is_fixed = false;
  int64_t least = kSmallestVocabulary;
  each_source(data, [&](Json& source, bool) {
    has_text |= !is_task(source);
    if (source.text_at("task") == "mqar") { least = std::max(least, sequence_length + kVocabularyMultiple); }
    is_fixed |= source.text_at("task") == "icl";  // its ids are fixed
  });
  const int64_t old = size_at(model, "vocab_size");
  const int64_t vocabulary = is_fixed                             ? old
                             : has_text && options.corpus.empty() ? old
                             : has_text                           ? kBytesVocabulary
                                                                  : shrunken_vocabulary(old, options.scale, least);
  model.set("vocab_size", Json(vocabulary));
  each_source(data, [&](Json& source, bool is_validation) {
    if (is_task(source)) {
      shrink_task(source, sequence_length, vocabulary, options.scale);
    } else {
      shrink_length(source, "min_document_tokens", options.scale);
      if (!options.corpus.empty()) { use_corpus(source, options.corpus, is_validation); }
    }
  });
  shrink_length(data, "min_document_tokens", options.scale);
  if (has_text && !options.corpus.empty()) {
    for (const char* key : {"split_token", "split", "tokenizer"}) { data.set(key, Json()); }
  }
}

}  // namespace hebb
