#include "hub/environment.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace kvasir::hub {
namespace {

TEST(HubEnvironments, CacheAsTheHuggingFaceToolsHaveIt) {
  HubEnvironment environment;
  EXPECT_FALSE(hub_cache(environment).ok());
  environment.home = "/home/me";
  EXPECT_EQ(*hub_cache(environment), "/home/me/.cache/huggingface/hub");
  environment.xdg_cache_home = "/xdg";
  EXPECT_EQ(*hub_cache(environment), "/xdg/huggingface/hub");
  environment.hf_home = "~/hf";
  EXPECT_EQ(*hub_cache(environment), "/home/me/hf/hub");
  environment.huggingface_hub_cache = "/old";
  EXPECT_EQ(*hub_cache(environment), "/old");
  environment.hf_hub_cache = "~/new";
  EXPECT_EQ(*hub_cache(environment), "/home/me/new");
}

TEST(HubEnvironments, OtherFolders) {
  HubEnvironment environment;
  EXPECT_EQ(own_models(environment), "");
  environment.home = "/home/me";
  EXPECT_EQ(own_models(environment), "/home/me/.cache/kvasir/models");
  EXPECT_EQ(ollama_folders(environment).front(), "/home/me/.ollama/models");
  environment.xdg_cache_home = "/xdg";
  EXPECT_EQ(own_models(environment), "/xdg/kvasir/models");
  environment.kvasir_cache = "/kvasir";
  EXPECT_EQ(own_models(environment), "/kvasir/models");
  environment.ollama_models = "/ollama";
  EXPECT_EQ(ollama_folders(environment), std::vector<std::string>{"/ollama"});
}

TEST(HubEnvironments, Endpoint) {
  HubEnvironment environment;
  EXPECT_EQ(*hub_endpoint(environment), "https://huggingface.co");
  environment.hf_endpoint = "http://127.0.0.1:8000/hub/";
  EXPECT_EQ(*hub_endpoint(environment), "http://127.0.0.1:8000/hub");
  for (const char* wrong : {"huggingface.co", "file:///etc", "https://", "https://a@b", "https://a b", "https://a\\b",
                            "https://a?x", "https://a#x", "https://a\n"}) {
    environment.hf_endpoint = wrong;
    EXPECT_FALSE(hub_endpoint(environment).ok()) << wrong;
  }
}

TEST(HubEnvironments, Token) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / ("kvasir-token-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "token") << "  hf_file\n";
  std::ofstream(folder / "other") << "hf_other";
  HubEnvironment environment;
  EXPECT_EQ(*hub_token(environment), "");
  environment.hf_home = folder.string();
  EXPECT_EQ(*hub_token(environment), "hf_file");
  environment.hf_token_path = (folder / "other").string();
  EXPECT_EQ(*hub_token(environment), "hf_other");
  environment.hf_token = "hf_variable";
  EXPECT_EQ(*hub_token(environment), "hf_variable");
  environment.hf_token = "hf_a\r\nX: y";
  EXPECT_FALSE(hub_token(environment).ok());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kvasir::hub
