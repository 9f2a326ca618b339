# GK_HAVE_CUDA: whether kernels are compiled.  The programs then start on machines without a driver too, and say that they
# have no device.  Sanitizers and other compilers tell nothing about kernels: those presets leave CUDA out.
set_property(CACHE GK_CUDA PROPERTY STRINGS AUTO ON OFF)
set(GK_HAVE_CUDA OFF)
if(NOT GK_CUDA STREQUAL "OFF")
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
        # Code for compute capabilities 8.x and 9.x, and an intermediate form for later ones.
        if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
            set(CMAKE_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "Architectures of the kernels")
        endif()
        enable_language(CUDA)
        set(CMAKE_CUDA_STANDARD 17)
        set(CMAKE_CUDA_STANDARD_REQUIRED ON)
        set(CMAKE_CUDA_EXTENSIONS OFF)
        set(GK_HAVE_CUDA ON)
        # Its header is enough: the library itself is looked for when a program runs.
        find_path(GK_CUBLAS_INCLUDE cublas_v2.h HINTS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
        if(NOT GK_CUBLAS_INCLUDE)
            message(FATAL_ERROR "the CUDA backend needs the header of cuBLAS, cublas_v2.h, which is not beside ${CMAKE_CUDA_COMPILER}: "
                "install the CUDA toolkit's cuBLAS development package, or leave CUDA out with -DGK_CUDA=OFF")
        endif()
    elseif(GK_CUDA STREQUAL "ON")
        message(FATAL_ERROR "GK_CUDA=ON needs nvcc, which was not found: put it on the PATH, or set CUDACXX to it")
    endif()
endif()
