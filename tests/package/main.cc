// What a user of the installed library writes: the public headers and nothing else.
#include <kvasir/engine.h>
#include <kvasir/version.h>

#include <cstdio>
#include <string>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  kvasir::EngineOptions options;
  options.model = argv[1];
  options.threads = 1;
  auto engine = kvasir::Engine::open(options);
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", engine.status().message().c_str());
    return 1;
  }
  auto session = (*engine)->new_session({});
  if (!session.ok() || !(*session)->read("Once upon a time").ok()) return 1;
  kvasir::GenerateOptions generate;
  generate.max_tokens = 5;
  generate.ignore_eos = true;
  const auto result = (*session)->generate(generate, {});
  if (!result.ok() || result->tokens != 5 || result->kv.seen != 11) return 1;
  kvasir::RequestOptions request;
  request.prompt = "Once upon a time";
  request.generate = generate;
  request.generate.sampling.seed = result->seed;
  if (!(*engine)->submit(request).ok()) return 1;
  std::string text;
  while ((*engine)->unfinished() > 0) {
    const auto events = (*engine)->poll();
    if (!events.ok()) return 1;
    for (const kvasir::Event& event : *events) text += event.text;
  }
  if (text != result->text) return 1;
  std::printf("%s %s: 5 tokens:%s\n", (*engine)->model().name.c_str(), kvasir::kVersion, result->text.c_str());
  return 0;
}
