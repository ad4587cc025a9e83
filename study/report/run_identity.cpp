#include "study/report/run_identity.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "core/files.h"
#include "data/tokenizer/tokenizer.h"
#include "eval/comparison.h"
#include "study/report/parts.h"
#include "train/checkpoint.h"
#include "train/run_config.h"

namespace hebb {
namespace {

constexpr size_t kFewColumns = 4;  // more runs are rows

/// Names and sizes of the files, which stay where data moves; the path itself where they are gone.
std::string files_text(const std::string& path) {
  std::string text;
  try {
    for (const fs::path& file : expand_paths(path)) {
      text += fmt::format("{} {:d}\n", file.filename().string(), fs::file_size(file));
    }
  } catch (const std::exception&) { return path; }
  return text;
}

std::string tokenizer_text(const Json& config, const fs::path& run) {
  const Json* type = config.find_path("data.tokenizer.type");
  if (type == nullptr || !type->is_string()) { return ""; }
  TokenizerConfig own;
  own.type = type->as_string();
  const fs::path copy = run / tokenizer_copy_name(own);
  return own.type + " " + (fs::is_regular_file(copy) ? config_hash(Json(read_file(copy))) : "");
}

/// Fingerprints of the training sources by their paths, from state.json of the checkpoint or of the latest one; empty
/// where there is none.
std::map<std::string, std::string> fingerprints_of(const RunPlace& place, const Json& config) {
  std::map<std::string, std::string> prints;
  try {
    const CheckpointFolder checkpoints(place.run / "checkpoints");
    const std::optional<int64_t> step = place.step ? place.step : checkpoints.latest();
    if (!step) { return prints; }
    const Json state = parse_json_file((checkpoints.path_of(*step) / "state.json").string());
    const Json *known = state.find_path("loader.sources"), *sources = config.find_path("data.sources");
    if (known == nullptr || sources == nullptr || known->items().size() != sources->items().size()) { return prints; }
    for (size_t i = 0; i < sources->items().size(); ++i) {
      const std::string path = sources->items()[i].text_at("path");
      if (!path.empty()) { prints[path] = known->items()[i].text_at("fingerprint"); }
    }
  } catch (const Error&) { prints.clear(); }  // a damaged one: its names and sizes are left
  return prints;
}

/// The folder of a data set that a path or a pattern is in, and what it names there.
std::pair<std::string, std::string> data_set_of(const std::string& path) {
  const fs::path whole(path);
  const bool is_in_it = whole.has_extension() || path.find('*') != std::string::npos;
  return is_in_it ? std::pair{whole.parent_path().string(), whole.filename().string()} : std::pair{path, std::string()};
}

/// What the files of a source are, wherever they lie.
std::string data_text(const std::string& path, const std::map<std::string, std::string>& prints, bool is_validation) {
  for (const auto& [of_training, print] : prints) {
    if (!is_validation && of_training == path) { return print; }
    const auto [folder, name] = data_set_of(path);
    if (is_validation && data_set_of(of_training).first == folder) {  // of the same data set
      return print + " " + (name.empty() ? "val_*.bin" : name);
    }
  }
  return files_text(path);
}

Json with_data_text(Json source, const std::map<std::string, std::string>& prints, bool is_validation) {
  const Json* written = source.find("path");
  if (written == nullptr || !written->is_string()) { return source; }
  const std::string path = written->as_string();
  source.set("path", data_text(path, prints, is_validation));
  return source;
}

/// A source without what does not change its text: seeds, name, the place of its files.
Json source_text(Json source, const std::map<std::string, std::string>& prints, bool is_validation) {
  for (const char* key : {"seed", "name", "allow_training_data"}) { source.erase(key); }
  return with_data_text(std::move(source), prints, is_validation);
}

void flatten(const Json& json, const std::string& path, std::map<std::string, std::string>& values,
             std::vector<std::string>& keys) {
  const bool is_list = json.is_array() && std::any_of(json.items().begin(), json.items().end(),
                                                      [](const Json& item) { return item.is_object(); });
  if (json.is_object() || is_list) {
    const std::string front = path.empty() ? "" : path + ".";
    for (size_t i = 0; is_list && i < json.items().size(); ++i) {
      flatten(json.items()[i], fmt::format("{}{:d}", front, i), values, keys);
    }
    for (size_t i = 0; !is_list && i < json.members().size(); ++i) {
      flatten(json.members()[i].second, front + json.members()[i].first, values, keys);
    }
    return;
  }
  if (json.is_null()) { return; }  // like an absent key
  add_once(keys, path);
  values[path] = json.text();
}

/// Paths without their folders: data may lie elsewhere.
Json without_folders(Json json) {
  if (json.is_string()) { return json.as_string().substr(json.as_string().rfind('/') + 1); }
  if (json.is_array()) {
    for (Json& item : json.items()) { item = without_folders(item); }
  }
  if (json.is_object()) {
    for (auto& [key, value] : json.members()) { value = without_folders(value); }
  }
  return json;
}

/// Nothing that a comparison is about: a run's name and where it keeps its tokenizer.
bool is_place(const std::string& key) { return key == "name" || key == "data.tokenizer.file"; }

/// Layers that only some configurations have are one row each, by their types.
void fold_absent_layers(std::vector<std::string>& keys, std::vector<std::map<std::string, std::string>>& values) {
  const std::string front = "model.layers.";
  std::map<std::string, bool> is_everywhere;  // by layer
  const auto layer_of = [&](const std::string& key) {
    return key.starts_with(front) ? key.substr(0, key.find('.', front.size())) : std::string();
  };
  for (const std::string& key : keys) {
    if (const std::string layer = layer_of(key); !layer.empty()) {
      is_everywhere[layer] =
          std::all_of(values.begin(), values.end(), [&](const auto& run) { return run.count(layer + ".type") > 0; });
    }
  }
  std::erase_if(keys, [&](const std::string& key) {
    const std::string layer = layer_of(key);
    return !layer.empty() && !is_everywhere[layer] && key != layer + ".type";
  });
}

/// Whether nobody need have written the value: without the key the configuration reads the same.
bool is_default(const Json& config, const std::string& key) {
  const Json* const value = config.find_path(key);
  if (value == nullptr) { return true; }
  Json without = config;
  Json* object = &without;
  std::string_view rest = key;
  for (size_t dot = rest.find('.'); dot != std::string_view::npos; dot = rest.find('.')) {
    object = object->is_object() ? object->find(rest.substr(0, dot)) : nullptr;
    if (object == nullptr) { return false; }  // in a list
    rest.remove_prefix(dot + 1);
  }
  if (!object->is_object()) { return false; }
  object->erase(rest);
  try {
    const Json read = to_json(Fields::read<RunConfig>(without, ""));
    const Json* const again = read.find_path(key);
    return again != nullptr && *again == *value;
  } catch (const std::exception&) { return false; }  // required
}

}  // namespace

void add_identity(Json& result, const Json& config, const RunPlace& place) {
  const std::string tokenizer = tokenizer_text(config, place.run);
  const std::map<std::string, std::string> prints = fingerprints_of(place, config);
  Json text = Json::array({tokenizer});
  std::string seeds;
  const auto add_seed = [&](const Json* seed) { seeds += (seed != nullptr ? seed->dump() : "-") + " "; };
  for (const char* path : {"train.seed", "data.seed"}) { add_seed(config.find_path(path)); }
  if (const Json* sources = config.find_path("data.sources"); sources != nullptr && sources->is_array()) {
    for (const Json& source : sources->items()) {
      text.push(source_text(source, prints, false));
      add_seed(source.child("seed"));
    }
  }
  result.set("loss@data", config_hash(text));
  if (const Json* list = config.find_path("data.validation"); list != nullptr && list->is_array()) {
    for (const Json& source : list->items()) {
      const Json* name = source.child("name");
      if (name == nullptr || !name->is_string()) { continue; }
      result.set("val." + name->as_string() + "@data",
                 config_hash(Json::array({tokenizer, source_text(source, prints, true)})));
    }
  }
  result.set("seeds", seeds);
}

Json without_data_places(Json config, const RunPlace& place) {
  const std::map<std::string, std::string> prints = fingerprints_of(place, config);
  Json* data = config.find("data");
  if (data == nullptr || !data->is_object()) { return config; }
  for (const char* key : {"sources", "validation"}) {
    if (Json* list = data->find(key); list != nullptr && list->is_array()) {
      for (Json& source : list->items()) {
        source = with_data_text(std::move(source), prints, key == std::string_view("validation"));
      }
    }
  }
  return config;
}

std::string evaluation_data(const Json& result_file, bool per_token) {
  Json text = Json::array();
  for (const char* key : {"inputs", "config"}) {
    const Json* value = result_file.find(key);
    text.push(value != nullptr ? without_folders(*value) : Json());
  }
  const Json* tokenizer = result_file.find("tokenizer");
  text.push(per_token && tokenizer != nullptr ? *tokenizer : Json());
  return config_hash(text);
}

std::string data_letter(const std::vector<std::string>& all, const std::string& own) {
  std::vector<std::string> different;
  for (const std::string& one : all) { add_once(different, one); }
  if (different.size() < 2) { return ""; }
  const auto place = std::find(different.begin(), different.end(), own) - different.begin();
  return std::string(" [data ") +
         (place < 26 ? std::string(1, static_cast<char>('A' + place)) : std::to_string(place)) + "]";
}

Table config_differences(const std::vector<std::string>& ids, const std::vector<Json>& configs) {
  std::vector<std::string> keys;
  std::vector<std::map<std::string, std::string>> values(configs.size());
  for (size_t i = 0; i < configs.size(); ++i) { flatten(configs[i], "", values[i], keys); }
  fold_absent_layers(keys, values);
  const auto value = [&](size_t run, const std::string& key) {
    const auto at = values[run].find(key);
    return at != values[run].end() ? Json(at->second) : Json();
  };
  std::erase_if(keys, [&](const std::string& key) {
    for (size_t i = 1; i < configs.size(); ++i) {
      if (value(i, key) != value(0, key)) { return is_place(key); }
    }
    return true;
  });
  std::erase_if(keys, [&](const std::string& key) {
    return std::all_of(configs.begin(), configs.end(), [&](const Json& config) { return is_default(config, key); });
  });
  const bool has_columns = ids.size() <= kFewColumns;
  Table table{{has_columns ? "key" : "id"}, {}};
  add_number_columns(table, has_columns ? ids : keys);
  const size_t rows = keys.empty() ? 0 : has_columns ? keys.size() : ids.size();
  for (size_t row = 0; row < rows; ++row) {
    std::vector<Json> cells{has_columns ? keys[row] : ids[row]};
    for (size_t column = 1; column < table.columns.size(); ++column) {
      cells.push_back(has_columns ? value(column - 1, keys[row]) : value(row, keys[column - 1]));
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

}  // namespace hebb
