#include "client/demo/model.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "client/loader/safetensors.h"

namespace gpumem::demo {
namespace {

constexpr std::uint64_t kLayers = 8, kHidden = 1024, kInner = 3072, kVocabulary = 12288;

// A well-mixed function of its argument (the finalizer of SplitMix64, Steele, Lea and Flood 2014).
std::uint64_t Mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

std::string WriteDefaultModel(const std::string& path) {
  std::vector<loader::TensorToWrite> tensors;
  const auto add = [&](std::string name, const char* dtype, std::vector<std::uint64_t> shape) {
    const std::uint64_t seed = Mix(tensors.size()) << 32;
    tensors.push_back({std::move(name), dtype, std::move(shape), [seed](std::uint64_t from, std::span<std::byte> out) {
                         // Blocks begin at multiples of 8.
                         for (std::size_t i = 0; i < out.size(); i += 8) {
                           const std::uint64_t word = Mix(seed + (from + i) / 8);
                           std::memcpy(out.data() + i, &word, std::min<std::size_t>(8, out.size() - i));
                         }
                       }});
  };
  add("model.embed.weight", "BF16", {kVocabulary, kHidden});
  for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    for (const char* name : {"q", "k", "v", "o"}) add(prefix + "attention." + name, "BF16", {kHidden, kHidden});
    for (const char* name : {"gate", "up"}) add(prefix + "mlp." + name, "BF16", {kInner, kHidden});
    add(prefix + "mlp.down", "BF16", {kHidden, kInner});
    for (const char* name : {"attention_norm", "mlp_norm"}) add(prefix + name, "F32", {kHidden});
  }
  add("model.norm.weight", "F32", {kHidden});
  add("lm_head.weight", "BF16", {kVocabulary, kHidden});
  const std::optional<loader::Error> error = loader::Write(path, tensors, {{"made_by", "gpumem-demo"}});
  return error ? error->message : "";
}

}  // namespace gpumem::demo
