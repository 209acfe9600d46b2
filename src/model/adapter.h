// LoRA adapters (Hu et al., arXiv 2106.09685) in GGUF files, as llama.cpp's convert_lora_to_gguf.py writes them: which
// matrices of a model they add to.
//
// Keys: general.type "adapter", adapter.type "lora", general.architecture, adapter.lora.alpha. Tensors, for a matrix
// NAME of the model with dims [inputs, outputs]: NAME.lora_a [inputs, rank] and NAME.lora_b [rank, outputs].
// Thread-safety: plain values.
#pragma once

#include <string>
#include <vector>

#include "backend/backend.h"
#include "gguf/reader.h"
#include "kvasir/status.h"
#include "model/config.h"
#include "model/weights.h"

namespace kvasir {

// The parts of an adapter, located and checked but not read.
struct AdapterMap {
  std::string name;                // general.name; may be empty
  std::string task;                // adapter.lora.task_name; may be empty
  std::string prompt_prefix;       // adapter.lora.prompt_prefix, what prompts should begin with; may be empty
  int rank = 0;                    // the largest
  std::vector<LowRankPart> parts;  // by matrix; valid while the file is open
};

// `model`: the weights of a file of this configuration that is still open. Errors: kInvalidArgument for a file that is
// no adapter or one of another architecture; kUnsupported for other kinds of adapters, and tensors that cannot be added
// to (named); kDataLoss for tensors that do not fit the model or each other (named).
Result<AdapterMap> map_adapter(const gguf::File& file, const ModelConfig& config, const WeightMap& model);

}  // namespace kvasir
