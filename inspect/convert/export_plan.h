#pragma once
#include <string>
#include <vector>

#include "inspect/convert/classes.h"
#include "inspect/convert/convert.h"
#include "inspect/convert/folds.h"
#include "train/run_config.h"

namespace hebb {

/// How a model goes into a class of another library.
struct ExportPlan {
  std::string type;         // model_type
  Json config, model;       // config.json there; the `model` object after the folds, which is what that file says
  std::vector<Fold> folds;  // of the weights, in order
};

/// The class that is asked for ("": the first of export_classes() that holds the model exactly, but for qwen3_next).
/// length: of training rows. Errors: ConfigError with what the classes cannot hold.
ExportPlan plan_export(const ModelConfig& model, int64_t length, const std::string& wanted);

}  // namespace hebb
