//! For authors: labs and the book's reference pages (`lockstep course`), packages of one's own (`lockstep new`), and the files of data
//! sets (`lockstep data`).

pub(crate) mod course;
mod course_check;
pub(crate) mod data;
mod data_check;
mod data_make;
pub(crate) mod new;
mod new_lab;
mod reference;
mod variables;
