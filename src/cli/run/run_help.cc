#include "cli/run/run_help.h"

#include <initializer_list>

namespace kvasir::cli {

void arrange_help(CLI::App& run) {
  const auto group = [&](const char* name, std::initializer_list<const char*> options) {
    for (const char* option : options) run.get_option(option)->group(name);
  };
  group("Model and machine", {"--model", "--threads", "--isa"});
  group("Text", {"--prompt", "--file", "--parts", "--chat", "--raw", "--system", "--system-file", "--chat-template",
                 "--template-arg"});
  group("Length", {"--tokens", "--ignore-eos", "--stop"});
  group("What is kept", {"--kv", "--ctx", "--kv-memory", "--kv-type", "--page", "--chunk"});
  group("Sampling",
        {"--temp", "--top-k", "--top-p", "--min-p", "--repeat-penalty", "--frequency-penalty", "--presence-penalty",
         "--penalty-window", "--dry", "--dry-base", "--dry-length", "--dry-window", "--seed"});
  group("Several continuations", {"--samples", "--beams", "--length-penalty"});
  group("Sessions", {"--save", "--load"});
  group("Output", {"--json", "--json-stream", "--logprobs"});
  run.footer(
      "Examples:\n"
      "  kvasir run model.gguf                                    a conversation, on a terminal\n"
      "  kvasir run model.gguf --chat -f letter.txt -p 'Sum up.'  one answer, about a document\n"
      "  kvasir run model.gguf -f book.txt -n 200 -c 4096         200 tokens more of a book, 4,096 kept");
}

}  // namespace kvasir::cli
