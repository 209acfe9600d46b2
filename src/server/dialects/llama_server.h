// llama-server's own routes: /completion and /infill, and what they are described by.
// Thread-safety: as Dialect.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kvasir/engine.h"
#include "server/api/dialect.h"

namespace kvasir::server {

// The error form of llama-server.
std::string llama_error(const ErrorText& error);

class LlamaCompletion final : public Dialect {
 public:
  // `infill`: POST /infill; otherwise /completion.
  explicit LlamaCompletion(bool infill) : infill_(infill) {}

  std::string_view id_prefix() const override { return "completion-"; }
  ErrorForm error_form() const override { return llama_error; }
  Result<ReadBody> read(const nlohmann::json& body, const ReadContext& context) const override;

 private:
  const bool infill_;
};

// Bodies of /props and /slots. `slots`: requests that run at a time. `own`: the caller's requests.
nlohmann::json llama_props(const ModelSummary& model, const std::string& name, const std::string& version,
                           const SamplingOptions& sampling, int slots);
// The body of /lora-adapters. Paths are without their folders, which clients need not know.
nlohmann::json llama_adapters(const std::vector<AdapterSummary>& adapters);
nlohmann::json llama_slots(const SequenceList& own, std::int64_t context, int slots);

}  // namespace kvasir::server
