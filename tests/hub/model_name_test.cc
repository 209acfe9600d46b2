#include "hub/model_name.h"

#include <gtest/gtest.h>

#include <string>

namespace kvasir::hub {
namespace {

ModelName parsed(const std::string& text) {
  const Result<ModelName> name = parse_model_name(text);
  EXPECT_TRUE(name.ok()) << text << ": " << name.status().message();
  return name.ok() ? *name : ModelName();
}

TEST(ModelNames, OfTheHub) {
  ModelName name = parsed("hf:user/repo-GGUF");
  EXPECT_EQ(name.place, ModelPlace::kHub);
  EXPECT_EQ(name.repo, "user/repo-GGUF");
  EXPECT_EQ(name.quant, "");
  EXPECT_EQ(name.revision, "main");
  EXPECT_EQ(parsed("hf:user/repo:Q4_K_M").quant, "Q4_K_M");
  name = parsed("hf:user/repo:Q4_K_M@v1.0");
  EXPECT_EQ(name.quant, "Q4_K_M");
  EXPECT_EQ(name.revision, "v1.0");
  EXPECT_EQ(parsed("hf:user/repo@refs/pr/1").revision, "refs/pr/1");
  name = parsed("hf:user/repo/a folder/m-Q8_0.gguf@main");
  EXPECT_EQ(name.repo, "user/repo");
  EXPECT_EQ(name.file, "a folder/m-Q8_0.gguf");
}

TEST(ModelNames, OfOllama) {
  EXPECT_EQ(parsed("ollama:llama3.2").repo, "registry.ollama.ai/library/llama3.2");
  EXPECT_EQ(parsed("ollama:llama3.2").quant, "latest");
  EXPECT_EQ(parsed("ollama:llama3.2:1b-q8_0").quant, "1b-q8_0");
  EXPECT_EQ(parsed("ollama:me/mine:x").repo, "registry.ollama.ai/me/mine");
  EXPECT_EQ(parsed("ollama:hf.co/user/repo:Q8_0").repo, "hf.co/user/repo");
}

TEST(ModelNames, OfLmStudioAndPaths) {
  EXPECT_EQ(parsed("lmstudio:someone/repo").repo, "someone/repo");
  EXPECT_EQ(parsed("lmstudio:someone/repo/a.gguf").file, "a.gguf");
  for (const char* path : {"model.gguf", "/models/x.gguf", "user/repo", "hf", "C:model.gguf"}) {
    EXPECT_EQ(parsed(path).place, ModelPlace::kPath) << path;
    EXPECT_EQ(parsed(path).path, path);
  }
}

TEST(ModelNames, AreWrittenAsTheyAreRead) {
  for (const char* text :
       {"hf:user/repo", "hf:user/repo:Q8_0", "hf:user/repo/x/y.gguf", "hf:user/repo:Q8_0@v1", "ollama:tiny:latest",
        "ollama:me/tiny:1b", "ollama:hf.co/user/repo:Q8_0", "lmstudio:a/b", "lmstudio:a/b:Q8_0", "some/path.gguf"})
    EXPECT_EQ(to_string(parsed(text)), text);
  EXPECT_EQ(to_string(parsed("ollama:tiny")), "ollama:tiny:latest");
}

TEST(ModelNames, ThatLeadElsewhereAreRefused) {
  for (const std::string text : {"hf:",
                                 "hf:user",
                                 "hf:user/",
                                 "hf:/repo",
                                 "hf:../repo",
                                 "hf:user/..",
                                 "hf:user/.git",
                                 "hf:-user/repo",
                                 "hf:user/re po",
                                 "hf:user/repo:",
                                 "hf:user/repo:Q4/K",
                                 "hf:user/repo:..",
                                 "hf:user/repo@",
                                 "hf:user/repo@../x",
                                 "hf:user/repo@a/../b",
                                 "hf:user/repo@-x",
                                 "hf:user/repo@x.lock",
                                 "hf:user/repo/x.bin",
                                 "hf:user/repo/../x.gguf",
                                 "hf:user/repo//x.gguf",
                                 "hf:user/repo/a\\b.gguf",
                                 "hf:us%2fer/repo",
                                 "hf:us--er/repo",
                                 "ollama:",
                                 "ollama:..",
                                 "ollama:a/b/c/d",
                                 "ollama:../../x",
                                 "ollama:x:",
                                 "ollama:x:..",
                                 "ollama:x:a/b",
                                 "lmstudio:a",
                                 "lmstudio:../b"})
    EXPECT_FALSE(parse_model_name(text).ok()) << text;
  EXPECT_FALSE(parse_model_name("hf:user/" + std::string(252, 'a')).ok());
  EXPECT_TRUE(parse_model_name("hf:user/" + std::string(251, 'a')).ok());
}

TEST(ModelNames, SafePaths) {
  for (const char* text : {"a.gguf", "a/b.gguf", "a b/ü.gguf", "..a/b..", "..."}) EXPECT_TRUE(is_safe_path(text));
  for (const std::string& text :
       {std::string(), std::string("/a"), std::string("a/"), std::string("a//b"), std::string("."), std::string(".."),
        std::string("a/.."), std::string("../a"), std::string("a/./b"), std::string("a\\b"), std::string("a\nb"),
        std::string("a\x7f"), std::string("a\0b", 3), std::string(256, 'a')})
    EXPECT_FALSE(is_safe_path(text)) << text;
}

TEST(ModelNames, WhatWasMeant) {
  EXPECT_EQ(name_meant("user/repo"), "hf:user/repo");
  EXPECT_EQ(name_meant("user/repo:Q8_0"), "hf:user/repo:Q8_0");
  EXPECT_EQ(name_meant("https://huggingface.co/user/repo/"), "hf:user/repo");
  EXPECT_EQ(name_meant("https://huggingface.co/user/repo/blob/main/x.gguf"), "hf:user/repo/x.gguf");
  EXPECT_EQ(name_meant("https://huggingface.co/user/repo/resolve/main/x.gguf?download=true"), "hf:user/repo/x.gguf");
  EXPECT_EQ(name_meant("hf.co/user/repo:Q8_0"), "hf:user/repo:Q8_0");
  EXPECT_EQ(name_meant("https://huggingface.co/user/repo/resolve/v1.0/a/x.gguf"), "hf:user/repo/a/x.gguf@v1.0");
  EXPECT_EQ(name_meant("https://huggingface.co/user/repo/tree/v1.0?x#y"), "hf:user/repo@v1.0");
  EXPECT_EQ(name_meant("https://huggingface.co/user/repo/tree/"), "");
  for (const char* text : {"repo", "/user/repo", "./repo", "a/b/c", "hf:user/repo", "ollama:x/y"})
    EXPECT_EQ(name_meant(text), "") << text;
}

}  // namespace
}  // namespace kvasir::hub
