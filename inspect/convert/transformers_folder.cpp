#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "inspect/convert/folders.h"
#include "inspect/convert/tokenizer_files.h"

namespace hebb {
namespace {

/// Writes the ids of BOS, EOS and PAD into config.json and generation_config.json, null where there is none: the
/// defaults of some classes are ids of other models. Generation fills rows of unequal length with EOS where there is no
/// PAD.
void set_token_ids(const Tokenizer::Special& special, Json& config, NewFolder& folder,
                   std::vector<std::string>& files) {
  Json generation = Json::object();
  for (const auto& [key, id] :
       {std::pair{"bos_token_id", special.bos}, {"eos_token_id", special.eos}, {"pad_token_id", special.pad}}) {
    config.set(key, id < 0 ? Json() : Json(id));
    generation.set(key, config.at(key));
  }
  if (special.pad < 0) { generation.set("pad_token_id", config.at("eos_token_id")); }
  files.emplace_back("generation_config.json");
  write_file_atomic(folder.add(files.back()), generation.dump(1) + "\n");
}

/// The longest text that the model was made for: of training, or as far as YaRN stretches that.
int64_t max_length_of(const Json& config, int64_t length) {
  const double original = config.number_at("rope_scaling.original_max_position_embeddings", 0);
  return std::max<int64_t>(length, std::llround(original * config.number_at("rope_scaling.factor", 0)));
}

/// README.md of a folder, as hubs of models show it.
std::string model_card(const ModelSource& source, const Json& config, int64_t parameters) {
  const std::string name = source.config.text_at("name"), type = config.at("model_type").as_string();
  const bool is_own = type == kHebbType;
  return fmt::format(
      R"(---
library_name: transformers
pipeline_tag: text-generation
tags:
- hebb
---
# {}

A language model that hebb trained.

| | |
|---|---|
| class | `{}` |
| parameters | {:d} |
| layers | {:d} |
| vocabulary | {:d} |
| longest text of training | {:d} tokens |

```python
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained("FOLDER"{})
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
```
)",
      name.empty() ? "Model" : name, config.at("architectures").items().front().as_string(), parameters,
      source.model.num_layers, source.model.vocab_size, config.at("max_position_embeddings").as_int(),
      is_own ? ", trust_remote_code=True" : "");
}

}  // namespace

int64_t trained_length(const ModelSource& source) {
  const int64_t positions = max_positions(source);
  return source.config.integer_at("train.sequence_length", positions > 0 ? positions : 4096);
}

WrittenFiles write_for_transformers(const ModelSource& source, const Tensors& tensors, Json& config,
                                    const ConvertOptions& options, NewFolder& folder) {
  const int64_t max_length = max_length_of(config, trained_length(source));
  config.set("max_position_embeddings", max_length);
  // transformers asks for this member.
  WrittenFiles written{write_weights(tensors, options, {{"format", "pt"}}, folder), {}};
  Tokenizer::Special special;
  if (const auto own = tokenizer_of(source); own) {
    const auto tokenizer = Tokenizer::load(*own);
    require_ids(*tokenizer, source.model.vocab_size, source.weights.string() + ": model.vocab_size");
    special = tokenizer->special();
    const TokenizerFiles files = export_tokenizer(*tokenizer, max_length, folder);
    written.names.insert(written.names.end(), files.names.begin(), files.names.end());
    written.notes = files.notes;
    if (config.at("model_type") == Json(kHebbType)) { config.set("data", Json::object({{"tokenizer", files.config}})); }
  } else {
    written.notes.push_back("no tokenizer: " + source.weights.parent_path().string() + " has none and names none");
  }
  set_token_ids(special, config, folder, written.names);
  write_file_atomic(folder.add("config.json"), config.dump(1) + "\n");
  int64_t parameters = 0;
  for (const NamedTensor& named : tensors.list()) { parameters += named.tensor.numel(); }
  write_file_atomic(folder.add("README.md"), model_card(source, config, parameters));
  written.names.insert(written.names.end(), {"config.json", "README.md"});
  return written;
}

}  // namespace hebb
