# The shared library's face (its version, what it exports), and what `cmake --install` lays down: the library with its layers
# inside, the public headers, and the files by which find_package(onebit) and pkg-config find them. Programs say in their
# own folders that they are installed.
#
# To be included after the target `onebit` is made.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Before 1.0 a minor version may break the ABI, after it a major one.
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(onebit_soversion "${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")
  set(onebit_compatibility SameMinorVersion)
else()
  set(onebit_soversion "${PROJECT_VERSION_MAJOR}")
  set(onebit_compatibility SameMajorVersion)
endif()
set_target_properties(onebit PROPERTIES VERSION "${PROJECT_VERSION}" SOVERSION "${onebit_soversion}")

target_link_options(onebit PRIVATE "-Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/onebit.map")
set_property(TARGET onebit APPEND PROPERTY LINK_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/onebit.map")

install(TARGETS onebit EXPORT onebitTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES include/onebit/onebit.h include/onebit/onebit.hpp include/onebit/optimizer.h include/onebit/optimizer.hpp
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/onebit")

set(onebit_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/onebit")
install(EXPORT onebitTargets NAMESPACE onebit:: DESTINATION "${onebit_cmake_dir}")
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/onebitConfig.cmake.in" "${PROJECT_BINARY_DIR}/onebitConfig.cmake"
                              INSTALL_DESTINATION "${onebit_cmake_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/onebitConfigVersion.cmake" COMPATIBILITY ${onebit_compatibility})
install(FILES "${PROJECT_BINARY_DIR}/onebitConfig.cmake" "${PROJECT_BINARY_DIR}/onebitConfigVersion.cmake"
        DESTINATION "${onebit_cmake_dir}")

# The prefix is taken from where onebit.pc lies, so that the tree can be moved.
file(RELATIVE_PATH onebit_pc_to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file("${CMAKE_CURRENT_LIST_DIR}/onebit.pc.in" "${PROJECT_BINARY_DIR}/onebit.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/onebit.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

# For NCCL jobs; nothing links to these.
foreach(library onebit_nccl_shim onebit_cuda)
  if(TARGET ${library})
    install(TARGETS ${library} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  endif()
endforeach()
