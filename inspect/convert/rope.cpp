#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "inspect/convert/classes.h"

namespace hebb {
namespace {

/// What stands beside the object with rotary parameters and counts where that says nothing.
struct Beside {
  const Json *theta, *original;
  std::optional<double> partial;
  int64_t positions;
};

double number_or(HfConfig& config, const char* key, double otherwise) {
  const double value = config.number(key, otherwise);
  return value == 0 ? otherwise : value;  // as Python's `or`
}

Json read_yarn(HfConfig& rope, int64_t original, const Beside& beside) {
  if (!rope.has("factor")) { rope.number("factor"); }
  // Without a value: how many times longer than the original length the positions reach.
  const double factor = rope.number("factor", static_cast<double>(beside.positions) / static_cast<double>(original));
  Json yarn = Json::object({{"factor", factor}, {"original", original}});
  if (rope.find("beta_fast") != nullptr) { yarn.set("beta_fast", number_or(rope, "beta_fast", 32)); }
  if (rope.find("beta_slow") != nullptr) { yarn.set("beta_slow", number_or(rope, "beta_slow", 1)); }
  if (!rope.flag("truncate", true)) { yarn.set("truncate", false); }
  const double mscale = rope.number("mscale", 0), all = rope.number("mscale_all_dim", 0);
  if (const Json* attention = rope.find("attention_factor")) {
    rope.number("attention_factor");
    yarn.set("attention_factor", *attention);
  } else if (mscale != 0 && all != 0) {
    const auto scaled = [&](double by) { return factor <= 1 ? 1.0 : 0.1 * by * std::log(factor) + 1.0; };
    yarn.set("attention_factor", scaled(mscale) / scaled(all));
  }
  return yarn;
}

Json read_llama3(HfConfig& rope, int64_t original) {
  Json llama3 = Json::object({{"factor", rope.number("factor")}, {"original", original}});
  for (const char* key : {"low_freq_factor", "high_freq_factor"}) { llama3.set(key, rope.number(key)); }
  return llama3;
}

Json read_parameters(const Json& json, const std::string& place, const TransformersClass& c, int64_t head_dim,
                     const Beside& beside) {
  HfConfig rope(json, place);
  const Json* theta = rope.find("rope_theta");
  if (theta != nullptr && beside.theta != nullptr && !(*theta == *beside.theta)) {
    rope.fail("rope_theta", theta, beside.theta->dump() + ", as rope_theta beside " + place + " says");
  }
  if (theta != nullptr) { rope.number("rope_theta"); }
  theta = theta != nullptr ? theta : beside.theta;
  Json result = Json::object({{"theta", theta == nullptr ? c.theta : theta->as_double()}});
  int64_t dims = head_dim;
  if (!beside.partial) {
    rope.require("partial_rotary_factor", 1.0);
  } else {
    const double partial = rope.number("partial_rotary_factor", *beside.partial);
    dims = rope.size("partial_rotary_factor", static_cast<double>(head_dim) * partial);
    if (dims < 0 || dims > head_dim || dims % 2 != 0) {
      rope.fail("partial_rotary_factor", rope.find("partial_rotary_factor"),
                "a factor that makes an even number of channels from 0 to " + std::to_string(head_dim) + " rotate");
    }
    if (dims != head_dim) { result.set("dims", dims); }
  }
  const std::string old_name = rope.text("type", "default"), type = rope.text("rope_type", old_name);
  if (type != "default") {
    const Json* original = beside.original != nullptr ? beside.original : rope.find("original_max_position_embeddings");
    if (original != nullptr && (!original->is_integer() || original->as_int() < 1)) {
      rope.fail("original_max_position_embeddings", original, "an integer >= 1");
    }
    rope.has("original_max_position_embeddings");
    const int64_t length = original == nullptr ? beside.positions : original->as_int();
    if (type == "yarn") {
      result.set("yarn", read_yarn(rope, length, beside));
    } else if (type == "llama3") {
      result.set("llama3", read_llama3(rope, length));
    } else {
      rope.fail(rope.has("rope_type") ? "rope_type" : "type", rope.find(rope.has("rope_type") ? "rope_type" : "type"),
                "\"default\", \"yarn\" or \"llama3\"");
    }
  }
  // Of images' positions, which texts have not; of how a model came to its factor.
  rope.finish({"finetuned", "mrope_interleaved", "mrope_section"});
  return dims == 0 ? Json() : result;
}

}  // namespace

Json rope_of_hf(HfConfig& config, const TransformersClass& c, int64_t head_dim, std::optional<double> partial,
                const std::vector<std::string>& layer_types, const std::string& layer_type) {
  const Json *scaling = config.object("rope_scaling"), *parameters = config.object("rope_parameters");
  const Json* theta = config.find("rope_theta");
  if (theta != nullptr) { config.number("rope_theta"); }
  if (!partial) {
    config.require("partial_rotary_factor", 1.0);
  } else {
    partial = config.number("partial_rotary_factor", *partial);
  }
  const Beside beside{theta, config.find("original_max_position_embeddings"), partial,
                      config.positive("max_position_embeddings", c.positions)};
  const auto read = [&](const Json* json, const std::string& place) {
    const auto is_type = [&](const Json::Member& m) {
      return std::find(layer_types.begin(), layer_types.end(), m.first) != layer_types.end();
    };
    const bool is_nested = std::any_of(json->members().begin(), json->members().end(), is_type);
    if (!is_nested) { return read_parameters(*json, place, c, head_dim, beside); }
    HfConfig by_type(*json, place);
    for (const std::string& type : layer_types) { by_type.object(type); }
    by_type.finish({});
    const Json* own = by_type.object(layer_type);
    if (own == nullptr) { by_type.fail(layer_type, own, "rotary parameters of each layer type"); }
    return read_parameters(*own, place + "." + layer_type, c, head_dim, beside);
  };
  const Json nothing = Json::object();
  const bool has_scaling = scaling != nullptr && !scaling->members().empty();
  const bool has_parameters = parameters != nullptr && !parameters->members().empty();
  if (!has_scaling) { return read(has_parameters ? parameters : &nothing, "rope_parameters"); }
  Json rope = read(scaling, "rope_scaling");
  if (has_parameters && !(read(parameters, "rope_parameters") == rope)) {
    config.fail("rope_parameters", parameters, "what rope_scaling says, or one of the two");
  }
  return rope;
}

void write_rope(const Json& rope, int64_t head_dim, bool partial, Json& hf) {
  const Json theta = rope.is_null() ? Json(10000.0) : rope.at("theta");
  Json scaling = Json::object();
  const auto take = [&](const Json& from, std::initializer_list<std::pair<const char*, const char*>> names) {
    for (const auto& [to, key] : names) {
      if (const Json& value = from.at(key); !value.is_null()) { scaling.set(to, value); }
    }
  };
  const std::pair<const char*, const char*> factor{"factor", "factor"},
      original{"original_max_position_embeddings", "original"};
  if (!rope.is_null() && !rope.at("yarn").is_null()) {
    scaling.set("rope_type", "yarn");
    take(rope.at("yarn"), {factor,
                           original,
                           {"beta_fast", "beta_fast"},
                           {"beta_slow", "beta_slow"},
                           {"attention_factor", "attention_factor"},
                           {"truncate", "truncate"}});
  } else if (!rope.is_null() && !rope.at("llama3").is_null()) {
    scaling.set("rope_type", "llama3");
    take(rope.at("llama3"),
         {factor, original, {"low_freq_factor", "low_freq_factor"}, {"high_freq_factor", "high_freq_factor"}});
  }
  Json parameters = scaling;
  if (parameters.find("rope_type") == nullptr) { parameters.set("rope_type", "default"); }
  parameters.set("rope_theta", theta);
  if (partial) {
    const int64_t dims = rope.is_null() ? 0 : rope.at("dims").as_int();
    const double share = product_to(head_dim, dims);
    parameters.set("partial_rotary_factor", share);
    hf.set("partial_rotary_factor", share);
  }
  hf.set("rope_theta", theta);
  hf.set("rope_scaling", scaling.members().empty() ? Json() : scaling);
  hf.set("rope_parameters", parameters);
  if (!scaling.members().empty()) {
    const double reach = scaling.at("factor").as_double() * scaling.at("original_max_position_embeddings").as_double();
    const double length = hf.at("max_position_embeddings").as_double();
    if (reach > length && reach < 0x1p31) { hf.set("max_position_embeddings", static_cast<int64_t>(reach)); }
  }
}

double product_to(int64_t factor, int64_t product) {
  const double quotient = static_cast<double>(product) / static_cast<double>(factor);
  const bool is_cut = static_cast<int64_t>(static_cast<double>(factor) * quotient) < product;
  return is_cut ? std::nextafter(quotient, std::numeric_limits<double>::infinity()) : quotient;
}

}  // namespace hebb
