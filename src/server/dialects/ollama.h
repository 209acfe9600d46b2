// Ollama's chat and generate.
// Thread-safety: as Dialect.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kvasir/engine.h"
#include "server/api/dialect.h"
#include "server/models/model_desk.h"

namespace kvasir::server {

// The error form of Ollama's API.
std::string ollama_error(const ErrorText& error);

class OllamaDialect final : public Dialect {
 public:
  // `chat`: POST /api/chat; otherwise /api/generate.
  explicit OllamaDialect(bool chat) : chat_(chat) {}

  std::string_view id_prefix() const override { return "ollama-"; }
  ErrorForm error_form() const override { return ollama_error; }
  std::string model_of(std::string named) const override;
  Result<ReadBody> read(const nlohmann::json& body, const ReadContext& context) const override;

 private:
  const bool chat_;
};

// Returns a name without ":latest", which Ollama's clients may put behind it.
std::string ollama_model(std::string name);

// Bodies of /api/tags, /api/ps (the loaded ones) and /api/show. `since`: seconds since 1970.
nlohmann::json ollama_tags(const std::vector<ModelDesk::Info>& models, std::int64_t since);
nlohmann::json ollama_running(const std::vector<ModelDesk::Info>& models);
// `tools`: whether the model's chat template takes tools.
nlohmann::json ollama_show(const ModelSummary& model, bool tools, std::int64_t since);

}  // namespace kvasir::server
