// kvasir tokenize: prints the token ids of a text.
#include <fmt/ranges.h>

#include <optional>

#include "base/status.h"
#include "chat/chat_template.h"
#include "cli/chat_input.h"
#include "cli/command.h"
#include "cli/text_input.h"
#include "gguf/reader.h"
#include "model/chat_template_from_gguf.h"
#include "model/vocabulary_from_gguf.h"
#include "text/tokenizer.h"

namespace kvasir::cli {
namespace {

struct TokenizeOptions {
  std::string model;
  std::optional<std::string> text;
  std::string file;
  std::string chat_template;
  std::vector<std::pair<std::string, std::string>> template_arguments;
  bool chat = false;
  bool no_answer = false;
  bool ids = false;
  bool no_bos = false;
  bool special = false;
  bool json = false;
};

// The encoded text; for a conversation, also further fields of the report.
struct Encoded {
  std::vector<TokenId> tokens;
  Json more = Json::object();
};

Result<Encoded> encode_conversation(const TokenizeOptions& options, std::string_view text, const ChatTemplate& chat,
                                    const Tokenizer& tokenizer) {
  KVASIR_ASSIGN_OR_RETURN(const std::vector<ChatMessage> messages, parse_messages(text));
  KVASIR_ASSIGN_OR_RETURN(const ChatPrompt prompt, chat.render(messages, !options.no_answer));
  Encoded encoded;
  KVASIR_ASSIGN_OR_RETURN(encoded.tokens, encode_chat(tokenizer, prompt, !options.no_bos));
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  const bool bos = !options.no_bos && (prompt.bos || vocabulary.add_bos) && vocabulary.bos;
  encoded.more = {{"template", chat.name()},
                  {"prompt", (bos ? tokenizer.bytes_of(*vocabulary.bos, true) : "") + prompt.text()}};
  return encoded;
}

Status tokenize(const TokenizeOptions& options) {
  ChatTemplateOptions form;
  form.arguments = options.template_arguments;
  KVASIR_ASSIGN_OR_RETURN(form.source, read_chat_template(options.chat_template));
  KVASIR_ASSIGN_OR_RETURN(const gguf::File file, gguf::File::open(options.model, {.header_only = true}));
  KVASIR_ASSIGN_OR_RETURN(Vocabulary vocabulary, vocabulary_from_gguf(file));
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<ChatTemplate> chat, chat_template_from_gguf(file, vocabulary, form));
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, make_tokenizer(std::move(vocabulary)));
  std::optional<std::string> text = options.text;
  if (!text) {
    KVASIR_ASSIGN_OR_RETURN(text, read_text_file(options.file.empty() ? "-" : options.file));
  }
  Encoded encoded;
  if (options.chat) {
    KVASIR_ASSIGN_OR_RETURN(encoded, encode_conversation(options, *text, *chat, *tokenizer));
  } else {
    KVASIR_ASSIGN_OR_RETURN(
        encoded.tokens, tokenizer->encode(*text, {.add_special = !options.no_bos, .parse_special = options.special}));
  }
  const std::vector<TokenId>& tokens = encoded.tokens;
  if (options.json) {
    Json pieces = Json::array();
    for (const TokenId token : tokens) pieces.push_back(tokenizer->bytes_of(token, true));
    Json out{{"count", tokens.size()}, {"ids", tokens}, {"pieces", pieces}};
    out.update(encoded.more);
    return print_json(out);
  }
  if (options.ids) return print(fmt::format("{}\n", fmt::join(tokens, " ")));
  std::string out;
  for (const TokenId token : tokens)
    out += fmt::format("{:>7}  '{}'\n", token, printable(tokenizer->bytes_of(token, true), 80));
  return print(out);
}

}  // namespace

void add_tokenize(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = program.add_subcommand("tokenize", "Token ids of a text (standard input without -p or -f)");
  add_model_option(*command, options->model);
  auto* text = command->add_option("-p,--prompt", options->text, "Text");
  command->add_option("-f,--file", options->file, "File with the text; -: standard input")
      ->excludes(text)
      ->type_name("FILE");
  command->add_flag("--ids", options->ids, "Ids alone, separated by spaces");
  command->add_flag("--no-bos", options->no_bos, "No token for the beginning of the text");
  auto* special = command->add_flag("--special", options->special, "Recognise control tokens written out in the text");
  auto* chat = command->add_flag("--chat", options->chat,
                                 "The text is a conversation: a JSON array of {\"role\", \"content\"}, as the model's "
                                 "chat template writes it");
  chat->excludes(special);
  command->add_flag("--no-answer", options->no_answer, "With --chat: no start of an answer at the end")->needs(chat);
  add_chat_template_option(*command, options->chat_template)->needs(chat);
  add_template_arg_option(*command, options->template_arguments)->needs(chat);
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, &outcome] { outcome.status = tokenize(*options); });
}

}  // namespace kvasir::cli
