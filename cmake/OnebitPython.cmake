# ONEBIT_PYTHON: the Python that tests of the package use.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
find_program(ONEBIT_PYTHON NAMES python3 PATHS /usr/bin NO_DEFAULT_PATH
             DOC "The Python whose PyTorch is tested with; by default the system's, as Debian's packages are for that")
if(NOT ONEBIT_PYTHON)
  set(ONEBIT_PYTHON "${Python3_EXECUTABLE}")
endif()
