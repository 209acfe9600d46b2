// Ollama's chat and generate.
// Thread-safety: as Dialect.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kvasir/engine.h"
#include "server/api/dialect.h"

namespace kvasir::server {

// The error form of Ollama's API.
std::string ollama_error(const ErrorText& error);

class OllamaDialect final : public Dialect {
 public:
  // `chat`: POST /api/chat; otherwise /api/generate. `context`: the model's trained context, in tokens.
  OllamaDialect(bool chat, std::int64_t context) : chat_(chat), context_(context) {}

  std::string_view id_prefix() const override { return "ollama-"; }
  ErrorForm error_form() const override { return ollama_error; }
  Result<ReadBody> read(const nlohmann::json& body, const ReadContext& context) const override;

 private:
  const bool chat_;
  const std::int64_t context_;
};

// Returns a name without ":latest", which Ollama's clients may put behind it.
std::string ollama_model(std::string name);

// Bodies of /api/tags, /api/ps and /api/show. `name`: the model's for clients. `since`: seconds since 1970.
nlohmann::json ollama_tags(const ModelSummary& model, const std::string& name, std::int64_t since);
nlohmann::json ollama_running(const ModelSummary& model, const std::string& name);
// `tools`: whether the model's chat template takes tools.
nlohmann::json ollama_show(const ModelSummary& model, bool tools, std::int64_t since);

}  // namespace kvasir::server
