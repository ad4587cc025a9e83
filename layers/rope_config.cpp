#include "layers/rope_config.h"

#include <cmath>

namespace hebb {

void fields(Fields& f, YarnConfig& c) {
  f.field("factor", c.factor).required().min(1).help("How many times longer than the training length.");
  f.field("original", c.original).required().min(1).help("Training length.").unit("tokens");
  f.field("beta_fast", c.beta_fast)
      .above(0)
      .help("Channels that turn this often in the training length keep their frequency.");
  f.field("beta_slow", c.beta_slow).above(0).help("Channels that turn less often are slowed down by the factor.");
  f.field("attention_factor", c.attention_factor).above(0).help("Factor of cos and sin; default 0.1 ln(factor) + 1.");
  f.field("truncate", c.truncate)
      .help("Round the first and the last channel that is slowed down to whole numbers; default true.");
  if (f.reading() && !c.attention_factor) { c.attention_factor = 0.1 * std::log(c.factor) + 1.0; }
}

RopeSpec extended(RopeSpec spec, const YarnConfig& c) {
  spec.yarn = true;
  spec.llama3 = false;
  spec.factor = c.factor;
  spec.original = c.original;
  spec.beta_fast = c.beta_fast;
  spec.beta_slow = c.beta_slow;
  spec.attention_factor = c.attention_factor.value_or(0.1 * std::log(c.factor) + 1.0);
  spec.truncate = c.truncate.value_or(true);
  return spec;
}

void fields(Fields& f, Llama3Config& c) {
  f.field("factor", c.factor).required().min(1).help("How many times longer than the training length.");
  f.field("original", c.original).required().min(1).help("Training length.").unit("tokens");
  f.field("low_freq_factor", c.low_freq_factor)
      .required()
      .above(0)
      .help("Channels that turn less often in the training length are slowed down by the factor.");
  f.field("high_freq_factor", c.high_freq_factor)
      .required()
      .help("Channels that turn more often keep their frequency; > low_freq_factor.");
  f.require(c.high_freq_factor > c.low_freq_factor, "high_freq_factor", "a number > low_freq_factor");
}

void fields(Fields& f, RopeConfig& c) {
  f.field("theta", c.theta).required().above(0).help("Base of the rotary frequencies.");
  f.field("dims", c.dims)
      .min(2)
      .help("Rotated channels of a head, even; default: all.")
      .scales(scaling::rope_channels(c.endpoint ? 4 : 2));
  f.field("endpoint", c.endpoint).help("Frequencies theta^(-i/(dims/2 - 1)) instead of theta^(-2i/dims).");
  f.object("yarn", c.yarn).help("YaRN: evaluation beyond the training length.");
  f.object("llama3", c.llama3).help("Llama 3.1's extension of the training length.");
  if (f.reading()) {
    f.require(!c.dims || *c.dims % 2 == 0, "dims", "an even integer");
    f.require(!c.endpoint || !c.yarn, "endpoint", "false together with yarn");
    f.require(!c.endpoint || !c.llama3, "endpoint", "false together with llama3");
    f.require(!c.yarn || !c.llama3, "llama3", "nothing together with yarn");
    f.require(!c.yarn || c.theta > 1, "theta", "a number > 1 together with yarn");
  }
}

void RopeConfig::resolve(const Fields& f, int64_t head_dim) {
  const std::string all = std::to_string(head_dim);
  if (!dims && head_dim % 2 != 0) {
    f.fail("rope.dims", "nothing", "an even integer (required, since head_dim is " + all + ")");
  }
  dims = dims.value_or(head_dim);
  if (*dims > head_dim) {
    f.fail("rope.dims", std::to_string(*dims), "an even integer from 2 to head_dim (" + all + ")");
  }
  if (endpoint && *dims < 4) {
    f.fail("rope.dims", std::to_string(*dims), "an even integer >= 4 together with endpoint");
  }
}

RopeSpec RopeConfig::spec() const {
  RopeSpec s;
  s.theta = theta;
  s.dims = dims.value_or(0);
  s.endpoint = endpoint;
  if (llama3) {
    s.llama3 = true;
    s.factor = llama3->factor;
    s.original = llama3->original;
    s.low_freq_factor = llama3->low_freq_factor;
    s.high_freq_factor = llama3->high_freq_factor;
  }
  return yarn ? extended(s, *yarn) : s;
}

}  // namespace hebb
