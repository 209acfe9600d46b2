#include "chat/recognise_template.h"

#include "chat/template_readers.h"
#include "chat/template_survey.h"

namespace kvasir {
namespace {

std::string_view name_of(const ChatFormat& format) {
  const std::string& user = format.user.before;
  const auto starts = [&](std::string_view mark) { return user.find(mark) != std::string::npos; };
  if (starts("<|im_sep|>")) return "phi-4";
  if (starts("<|im_start|>")) return "chatml";
  if (starts("<|start_header_id|>")) return format.default_system ? "llama-3.1" : "llama-3";
  if (starts("[INST]")) return format.fold_before.find("<<SYS>>") != std::string::npos ? "llama-2" : "mistral";
  if (starts("<start_of_turn>")) return "gemma";
  if (starts("<|user|>")) return format.assistant.after.find("<|end|>") != std::string::npos ? "phi-3" : "zephyr";
  return "by role";
}

// Returns the text with which the model itself ends an answer: EOS if the format has it, otherwise the closing text
// without surrounding white space.
std::string end_of(const ChatFormat& format) {
  const std::string& after = format.assistant.after;
  if (!format.eos_text.empty() && after.find(format.eos_text) != std::string::npos) return format.eos_text;
  const std::size_t begin = after.find_first_not_of(" \n");
  if (begin == std::string::npos) return {};
  return after.substr(begin, after.find_last_not_of(" \n") + 1 - begin);
}

}  // namespace

std::optional<ChatFormat> recognise_template(std::string_view source, const TemplateNames& names) {
  std::optional<std::string> text = survey_template(source);
  if (!text) return std::nullopt;
  std::optional<ChatFormat> format = read_family_template(*text);
  static constexpr std::string_view kBos = "{{bos_token";
  if (text->starts_with(std::string(kBos) + "+")) text->replace(kBos.size(), 1, "}}{{");
  if (!format) format = read_general_template(*text, names);
  if (!format) return std::nullopt;
  if (format->name.empty()) format->name = name_of(*format);
  format->bos_text = names.bos;
  format->eos_text = names.eos;
  format->end = end_of(*format);
  return format;
}

}  // namespace kvasir
