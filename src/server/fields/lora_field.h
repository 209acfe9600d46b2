// Reads which LoRA adapters a text runs with, as llama-server has them.
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "kvasir/options.h"
#include "kvasir/status.h"
#include "server/fields/json_fields.h"

namespace kvasir::server {

// Reads a list of {"id": 0, "scale": 0.5}, or {"name": "x"}; without "scale" it is 1. Errors: kInvalidArgument, about
// `lora`.
Result<std::vector<AdapterScale>> read_adapter_scales(const nlohmann::json& list);

// Reads the field `lora`.
Status read_lora(const Fields& body, std::optional<std::vector<AdapterScale>>& scales);

}  // namespace kvasir::server
