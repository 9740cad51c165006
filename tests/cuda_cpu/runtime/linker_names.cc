// Names of functions, from the dynamic linker or from the symbol table of the file that they are in.
#include <dlfcn.h>
#include <elf.h>

#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>

#include "cuda_cpu/runtime/kernel_table.h"

namespace onebit::cuda_cpu {
namespace {

using Names = std::unordered_map<std::uintptr_t, std::string>;

/// Of all functions in the file, by the address that they have in this process.
Names read_symbols(const char* path, std::uintptr_t base) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  Names names;
  if (bytes.size() < sizeof(Elf64_Ehdr)) return names;
  const auto* const header = reinterpret_cast<const Elf64_Ehdr*>(bytes.data());
  const auto* const sections = reinterpret_cast<const Elf64_Shdr*>(bytes.data() + header->e_shoff);
  if (header->e_type != ET_DYN) base = 0;
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const auto* const symbols = reinterpret_cast<const Elf64_Sym*>(bytes.data() + sections[i].sh_offset);
    const char* const strings = bytes.data() + sections[sections[i].sh_link].sh_offset;
    for (std::size_t k = 0; k < sections[i].sh_size / sizeof(Elf64_Sym); ++k) {
      if (ELF64_ST_TYPE(symbols[k].st_info) == STT_FUNC && symbols[k].st_value != 0) {
        names[base + symbols[k].st_value] = strings + symbols[k].st_name;
      }
    }
  }
  return names;
}

}  // namespace

std::string linker_name(const void* address) {
  Dl_info info;
  if (::dladdr(address, &info) == 0) return "";
  if (info.dli_sname != nullptr && info.dli_saddr == address) return info.dli_sname;
  static Mutex mutex;
  static auto& files = *new std::map<const void*, Names>;
  const std::lock_guard lock(mutex);
  const auto [file, is_new] = files.try_emplace(info.dli_fbase);
  if (is_new) file->second = read_symbols(info.dli_fname, reinterpret_cast<std::uintptr_t>(info.dli_fbase));
  const auto found = file->second.find(reinterpret_cast<std::uintptr_t>(address));
  return found == file->second.end() ? "" : found->second;
}

std::string comparable_name(const std::string& name) {
  constexpr char kUnnamed[] = "_GLOBAL__N_";  // behind it, nvcc puts a hash of the file
  constexpr std::size_t kUnnamedLength = sizeof kUnnamed - 1;
  std::string result;
  std::size_t at = 0;
  if (name.compare(0, 3, "_ZL") == 0) {
    result = "_Z";
    at = 3;
  }
  while (at < name.size()) {
    std::size_t digits = at;
    while (digits < name.size() && std::isdigit(static_cast<unsigned char>(name[digits])) != 0) ++digits;
    if (digits > at && name.compare(digits, kUnnamedLength, kUnnamed) == 0) {
      result += "12_GLOBAL__N_1";
      at = digits + std::strtoul(name.c_str() + at, nullptr, 10);
    } else {
      result += name[at++];
    }
  }
  return result;
}

}  // namespace onebit::cuda_cpu
