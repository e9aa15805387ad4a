// On a narrow screen, the list of pages would hide the page.
if (matchMedia("(max-width: 56rem)").matches) document.querySelector(".menu").open = false;
