#include "bootstrap/launcher.h"
