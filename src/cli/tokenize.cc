// kvasir tokenize: the token ids of a text.
#include <fmt/ranges.h>

#include <optional>

#include "base/mapped_file.h"
#include "base/status.h"
#include "cli/command.h"
#include "gguf/reader.h"
#include "model/vocabulary_from_gguf.h"
#include "text/tokenizer.h"

namespace kvasir::cli {
namespace {

struct TokenizeOptions {
  std::string model;
  std::optional<std::string> text;
  bool ids = false;
  bool no_bos = false;
  bool special = false;
  bool json = false;
};

Status tokenize(const TokenizeOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(const gguf::File file, gguf::File::open(options.model, {.header_only = true}));
  KVASIR_ASSIGN_OR_RETURN(Vocabulary vocabulary, vocabulary_from_gguf(file));
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, make_tokenizer(std::move(vocabulary)));
  std::optional<std::string> text = options.text;
  if (!text) {
    KVASIR_ASSIGN_OR_RETURN(text, read_file("-", std::size_t{1} << 30));
  }
  KVASIR_ASSIGN_OR_RETURN(const std::vector<TokenValue> tokens,
                          tokenizer->encode(*text, {.add_special = !options.no_bos, .parse_special = options.special}));
  if (options.json) {
    Json pieces = Json::array();
    for (const TokenValue token : tokens) pieces.push_back(tokenizer->bytes_of(token, true));
    return print_json({{"count", tokens.size()}, {"ids", tokens}, {"pieces", pieces}});
  }
  if (options.ids) return print(fmt::format("{}\n", fmt::join(tokens, " ")));
  std::string out;
  for (const TokenValue token : tokens)
    out += fmt::format("{:>7}  '{}'\n", token, printable(tokenizer->bytes_of(token, true), 80));
  return print(out);
}

}  // namespace

void add_tokenize(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = program.add_subcommand("tokenize", "Token ids of a text (standard input without -p)");
  add_model_option(*command, options->model);
  command->add_option("-p,--prompt", options->text, "Text");
  command->add_flag("--ids", options->ids, "Ids alone, separated by spaces");
  command->add_flag("--no-bos", options->no_bos, "No token for the beginning of the text");
  command->add_flag("--special", options->special, "Recognise control tokens written out in the text");
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, &outcome] { outcome.status = tokenize(*options); });
}

}  // namespace kvasir::cli
