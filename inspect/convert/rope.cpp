#include "inspect/convert/classes.h"

namespace hebb {

Json rope_of_hf(HfConfig& config) {
  Json rope = Json::object();
  const Json *both = config.find("rope_parameters"), *scaling = config.find("rope_scaling"),
             *theta = config.find("rope_theta");
  if (both != nullptr) {
    scaling = both;
    theta = both->find("rope_theta");
  }
  if (theta != nullptr && !theta->is_number()) { config.fail("rope_theta", theta, "a number"); }
  rope.set("theta", theta == nullptr ? 10000.0 : theta->as_double());
  if (scaling == nullptr) { return rope; }
  const Json* type = scaling->find("rope_type");
  if (type == nullptr) { type = scaling->find("type"); }
  if (type == nullptr || *type == Json("default")) { return rope; }
  if (!(*type == Json("yarn"))) { config.fail("rope_type", type, "\"default\" or \"yarn\""); }
  Json yarn = Json::object();
  const auto take = [&](const char* from, const char* to, bool is_required) {
    const Json* value = scaling->find(from);
    if (value != nullptr && value->is_number()) {
      yarn.set(to, *value);
    } else if (is_required) {
      config.fail(std::string("rope_scaling.") + from, value, "a number");
    }
  };
  take("factor", "factor", true);
  take("original_max_position_embeddings", "original", true);
  take("beta_fast", "beta_fast", false);
  take("beta_slow", "beta_slow", false);
  take("attention_factor", "attention_factor", false);
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    if (const Json* value = scaling->find(key)) {
      config.fail(std::string("rope_scaling.") + key, value, "no such key");
    }
  }
  rope.set("yarn", yarn);
  return rope;
}

const Json& rope_in(const Json& attention) {
  if (attention.at("rope").is_null()) {
    throw ConfigError("model, rope of attention", "null", "rotary positions, as in Hugging Face's models");
  }
  return attention.at("rope");
}

}  // namespace hebb
