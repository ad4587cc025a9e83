#include "layers/model_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/join.h"

namespace hebb {
namespace {

std::string role_with_article(Role role) {
  switch (role) {
    case Role::mixer: return "a mixer";
    case Role::memory: return "a memory";
    case Role::ffn: return "an ffn";
  }
  return "?";
}

std::vector<std::string> type_names() {
  std::vector<std::string> names;
  for (const LayerType& t : layer_types()) { names.push_back(t.name); }
  return names;
}

void read_definition(const std::string& name, Fields& f, ModelConfig& m) {
  LayerDefinition* definition = nullptr;
  for (LayerDefinition& d : m.layers) { definition = d.name == name ? &d : definition; }
  const std::string type = f.type_tag(definition != nullptr ? definition->type : "attention", type_names());
  if (definition == nullptr) {
    const LayerType* t = find_layer_type(type);
    m.layers.push_back({name, type, t->role, t->make()});
    definition = &m.layers.back();
  }
  definition->config->fields(f);
}

/// A block must name defined layers of the right role.
void check_reference(const Fields& f, const std::string& key, const std::optional<std::string>& name, Role role,
                     const ModelConfig& m) {
  if (!name) { return; }
  const LayerDefinition* d = m.find(*name);
  if (d == nullptr) {
    const std::string defined = join(m.layers, ", ", [](const LayerDefinition& l) { return l.name; });
    f.fail(key, "\"" + *name + "\"", "the name of a layer defined in model.layers (" + defined + ")");
  }
  if (d->role != role) {
    f.fail(key, "\"" + *name + "\" of type " + d->type + ", " + role_with_article(d->role),
           "a layer that can be " + role_with_article(role));
  }
}

void check_block(const Fields& f, const std::string& key, const BlockSpec& b, const ModelConfig& m) {
  check_reference(f, key + ".mixer", b.mixer, Role::mixer, m);
  check_reference(f, key + ".ffn", b.ffn, Role::ffn, m);
  check_reference(f, key + ".memory", b.memory, Role::memory, m);
}

}  // namespace

void fields(Fields& f, BlockSpec& b) {
  f.field("mixer", b.mixer).help("Name of the layer that mixes tokens.");
  f.field("ffn", b.ffn).help("Name of the feed-forward layer.");
  f.field("memory", b.memory).help("Name of the memory layer in front of the mixer, if any.");
}

namespace {

/// What a block has in place of its pattern's layers. Keys that change nothing are not written: null would be refused.
void change_fields(Fields& f, BlockSpec& b) {
  const auto layer = [&](const char* key, std::optional<std::string>& name, const char* help) {
    if (f.mode() != Fields::Mode::write || name) { f.field(key, name).help(help); }
  };
  layer("mixer", b.mixer, "Name of the layer that mixes tokens in this block.");
  layer("ffn", b.ffn, "Name of the block's feed-forward layer.");
  layer("memory", b.memory, "Name of the block's memory layer.");
}

/// null is no layer, and it cannot take away one that the pattern gives to a block.
void check_nulls(const Fields& f, const BlockSpec& pattern) {
  for (const auto& [key, name] :
       {std::pair{"mixer", pattern.mixer}, {"ffn", pattern.ffn}, {"memory", pattern.memory}}) {
    if (f.written(key) && f.json().find(key)->is_null()) {
      f.fail(key, name ? "null where the pattern has \"" + *name + "\"" : "null",
             "the name of a layer, or no such key (a block without what the pattern has needs an entry of its own in "
             "pattern)");
    }
  }
}

/// Sizes of 32 bits: a product of two is exact in 64 bits.
void check_sizes(const Fields& f, const Json& value, const std::string& path) {
  constexpr double kLargest = (int64_t{1} << 31) - 1;
  if (value.is_integer() && value.as_double() > kLargest) {
    f.fail(path, value.dump(), "an integer below 2^31, as all sizes of a model are");
  }
  const auto inside = [&](const std::string& name, const Json& part) {
    check_sizes(f, part, path.empty() ? name : path + "." + name);
  };
  if (value.is_array()) {
    for (size_t i = 0; i < value.items().size(); ++i) { inside(std::to_string(i), value.items()[i]); }
  } else if (value.is_object()) {
    for (const auto& [name, part] : value.members()) { inside(name, part); }
  }
}

}  // namespace

NormKind ModelConfig::norm_kind() const {
  return norm == "layer" ? NormKind::layer : norm == "rms" ? NormKind::rms : NormKind::rms_unit_offset;
}

Init ModelConfig::projection_init() const {
  if (init == "normal") { return init::normal(init_std); }
  const double bound = 1.0 / std::sqrt(static_cast<double>(hidden_size));
  return init::uniform(-bound, bound);
}

Init ModelConfig::output_init() const { return init == "normal" ? init::normal(init_std) : init::constant(0); }

const LayerDefinition* ModelConfig::find(const std::string& name) const {
  const auto it = std::find_if(layers.begin(), layers.end(), [&](const auto& d) { return d.name == name; });
  return it == layers.end() ? nullptr : &*it;
}

BlockSpec ModelConfig::block(int64_t i) const {
  BlockSpec b = pattern[static_cast<size_t>(i) % pattern.size()];
  if (const auto it = at.find(i); it != at.end()) {
    b.mixer = it->second.mixer ? it->second.mixer : b.mixer;
    b.ffn = it->second.ffn ? it->second.ffn : b.ffn;
    b.memory = it->second.memory ? it->second.memory : b.memory;
  }
  return b;
}

std::vector<std::string> ModelConfig::unused() const {
  std::vector<std::string> names;
  for (const LayerDefinition& d : layers) {
    bool used = false;
    for (int64_t i = 0; i < num_layers && !used; ++i) {
      const BlockSpec b = block(i);
      used = b.mixer == d.name || b.ffn == d.name || b.memory == d.name;
    }
    if (!used) { names.push_back(d.name); }
  }
  return names;
}

std::string ModelConfig::unused_text() const {
  std::string text;
  for (const std::string& name : unused()) { text += "model.layers." + name + " is used by no block\n"; }
  const auto entries = static_cast<int64_t>(pattern.size());
  if (entries > num_layers) {
    text += fmt::format(
        "model.pattern has {:d} entries for {:d} of model.num_layers: from model.pattern.{:d} on they are "
        "used by no block\n",
        entries, num_layers, num_layers);
  }
  return text;
}

void fields(Fields& f, ModelConfig& m) {
  f.field("vocab_size", m.vocab_size).required().min(1).help("Number of token ids.");
  f.field("hidden_size", m.hidden_size).required().min(1).help("Width d of the residual stream.");
  f.field("num_layers", m.num_layers).required().min(1).max(10000).help("Number of blocks.");
  f.field("norm_eps", m.norm_eps).above(0).help("Epsilon of the model's norms.");
  f.field("norm", m.norm).one_of({"rms", "rms_unit_offset", "layer"}).help("Kind of the model's norms.");
  f.field("tie_embeddings", m.tie_embeddings).help("The output matrix is the embedding matrix.");
  f.field("embed_norm", m.embed_norm).help("Norm after the embedding.");
  f.field("residual_scale", m.residual_scale).help("Factor of every residual branch.");
  f.field("init_std", m.init_std).min(0).help("Standard deviation of initial matrices.");
  f.field("init", m.init)
      .one_of({"normal", "gptalpha2"})
      .help("Initial embeddings, output matrix and attention and ovq projections: normal(init_std), or GPTAlpha-2's.");
  std::vector<std::string> names;
  for (const LayerDefinition& d : m.layers) { names.push_back(d.name); }
  f.map("layers", names, [&](const std::string& name, Fields& sub) { read_definition(name, sub, m); })
      .required()
      .help("Layer definitions by name, each with a \"type\".");
  f.list("pattern", m.pattern).required().not_empty().help("Blocks, cycled over num_layers.");
  std::vector<std::string> indices;
  for (const auto& [i, b] : m.at) { indices.push_back(std::to_string(i)); }
  f.map("at", indices, [&](const std::string& index, Fields& sub) {
     int64_t i = -1;
     std::from_chars(index.data(), index.data() + index.size(), i);
     // Written as the number is: "1" and "01" would be two entries of one block.
     if (sub.reading() && (std::to_string(i) != index || i < 0 || i >= m.num_layers)) {
       f.fail("at." + index, "\"" + index + "\"",
              fmt::format("a block index from 0 to {:d} (the override {}at.{}=null removes it)", m.num_layers - 1,
                          f.path().empty() ? "" : f.path() + ".", index));
     }
     change_fields(sub, m.at[i]);
   }).help("Changes at single blocks, by block index.");
  if (!f.reading()) { return; }
  check_sizes(f, Fields::write(m), "");
  for (size_t i = 0; i < m.pattern.size(); ++i) {
    const std::string key = fmt::format("pattern.{:d}", i);
    if (!m.pattern[i].mixer || !m.pattern[i].ffn) {
      f.fail(key + (m.pattern[i].mixer ? ".ffn" : ".mixer"), "nothing", "the name of a layer (required)");
    }
    check_block(f, key, m.pattern[i], m);
  }
  f.visit_members("at", [&](const std::string& index, Fields& sub) {
    check_nulls(sub, m.pattern[std::stoull(index) % m.pattern.size()]);
  });
  for (const auto& [i, b] : m.at) { check_block(f, fmt::format("at.{:d}", i), b, m); }
  for (const LayerDefinition& d : m.layers) { d.config->check(f, "layers." + d.name, m); }
}

}  // namespace hebb
