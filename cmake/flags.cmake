# gk_flags: what every C file of ours is compiled with.  No fast-math, no contraction and no -march=native:
# the bits of every sum are part of the contract (ARCHITECTURE.md, "Determinism").
add_library(gk_flags INTERFACE)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
target_compile_definitions(gk_flags INTERFACE _POSIX_C_SOURCE=200809L _DEFAULT_SOURCE
    GK_VERSION="${PROJECT_VERSION}")
target_compile_options(gk_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:C>:-Werror;-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wstrict-prototypes>"
    "$<$<COMPILE_LANGUAGE:C>:-Wmissing-prototypes;-Wvla;-Wundef;-Wswitch-enum;-ffp-contract=off;-fno-math-errno>")
target_include_directories(gk_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)

# Assertions stay on in every build type: CMake's default release flags would switch assert() off.
string(REPLACE "-DNDEBUG" "" CMAKE_C_FLAGS_RELEASE "${CMAKE_C_FLAGS_RELEASE}")
string(REPLACE "-DNDEBUG" "" CMAKE_C_FLAGS_RELWITHDEBINFO "${CMAKE_C_FLAGS_RELWITHDEBINFO}")
string(REPLACE "-O3" "-O2" CMAKE_C_FLAGS_RELEASE "${CMAKE_C_FLAGS_RELEASE}")
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
if(GK_SANITIZE)
    # What the sanitizers add takes the compiler longest at -O2, and their reports need lines but no variables.
    string(REPLACE "-O2 -g" "-O1 -g1" CMAKE_C_FLAGS_RELWITHDEBINFO "${CMAKE_C_FLAGS_RELWITHDEBINFO}")
    # Not for kernels: nvcc knows none of these.
    add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${GK_SANITIZE}>"
        "$<$<COMPILE_LANGUAGE:C,CXX>:-fno-sanitize-recover=all;-fno-omit-frame-pointer>")
    add_link_options(-fsanitize=${GK_SANITIZE})
endif()
