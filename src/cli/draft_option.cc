// --draft and --draft-model.
#include <filesystem>
#include <string>
#include <system_error>

#include "cli/command.h"
#include "scheduler/task.h"

namespace kvasir::cli {
namespace {

// Returns whether the value of --draft is the name of a file, which says itself what is wrong with it.
bool names_file(const std::string& text) {
  std::error_code ignored;
  return !check_draft(text, true).ok() &&
         (text.ends_with(".gguf") || text.find('/') != std::string::npos || std::filesystem::exists(text, ignored));
}

}  // namespace

void add_draft_option(CLI::App& command, std::string& draft, std::string& model) {
  const auto known = [](std::string& text) {
    const Status status = check_draft(text, true);
    return status.ok() || names_file(text) ? std::string()
                                           : status.message() + "; the file of a draft model ends in .gguf";
  };
  const auto read = [&draft, &model](const std::string& text) {
    draft = names_file(text) ? "model" : text;
    if (names_file(text)) model = text;
  };
  command
      .add_option_function<std::string>(
          "--draft", read,
          "Draft the next tokens, and check several in one pass: ngram[:match=3,most=7], from what followed the "
          "newest tokens before; the GGUF file of a small model with the same vocabulary; policy:SPEC, by the model "
          "where it attends to what a policy keeps, such as policy:streaming:cap=512; changes no token (default: off)")
      ->check(CLI::Validator(known, ""))
      ->type_name("DRAFT");
}

void add_draft_model_option(CLI::App& command, std::string& model) {
  command
      .add_option("--draft-model", model,
                  "GGUF file of a small model with the same vocabulary, which drafts for requests with draft=model; "
                  "--draft FILE makes it the default of all")
      ->type_name("FILE");
}

}  // namespace kvasir::cli
